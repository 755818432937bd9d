"""Building blocks: right values, and rows that do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from voxr_ray.voxcpm2.ops import (
    PACK_ELEMENTS,
    Linear,
    RMSNorm,
    attend,
    can_pack,
    gated_silu,
    silu,
)

SHAPES = [(7, 32), (64, 96), (96, 2), (256, 768), (512, 3), (768, 2048), (2048, 512)]
ROWS = 200


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    with torch.inference_mode():  # with gradients, activations are torch's own
        yield request.param
    torch.set_num_threads(before)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def linear(inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = True) -> Linear:
    layer = Linear(inputs, outputs, bias=bias)
    layer.weight = torch.nn.Parameter(draw(outputs, inputs, dtype=dtype) / inputs**0.5)
    if bias:
        layer.bias = torch.nn.Parameter(draw(outputs, dtype=dtype))
    return layer.requires_grad_(False)


def assert_rows_are_independent(operation: Callable[[Tensor], Tensor], x: Tensor) -> None:
    together = operation(x)
    for count in (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 64, 100):
        for start in (0, 1, 7):
            part = slice(start, start + count)
            assert torch.equal(operation(x[part].clone()), together[part]), f"{count} rows from {start}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_rows_of_a_linear_layer(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    layer = linear(inputs, outputs, dtype)
    expected = torch.nn.functional.linear(draw(5, inputs).float(), layer.weight.float(), layer.bias.float())
    x = draw(ROWS, inputs, dtype=dtype)
    for pack in (False, True):
        if pack:
            layer.pack()
            assert layer.packed == (inputs * outputs >= PACK_ELEMENTS and can_pack(dtype))
        assert_rows_are_independent(layer, x)
        close = layer(draw(5, inputs, dtype=dtype)).float()
        assert torch.allclose(close, expected, atol=1e-4 if dtype == torch.float32 else 0.1)


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX2",
    reason="the least share of a thread was measured on processors with AVX2 alone; elsewhere the start-up probe looks",
)
@pytest.mark.parametrize("outputs", [1, 3, 8, 9, 12, 16, 20, 24, 32, 48, 64, 96, 128])
def test_a_linear_layer_gives_the_same_bits_on_any_number_of_threads(outputs: int) -> None:
    """Those who share a wide batch out compute with one thread each, what is narrow runs on all of them."""
    x = draw(ROWS, 64)
    torch.set_num_threads(1)
    alone = linear(64, outputs, torch.float32)
    alone.pack()
    for threads in (2, 3, 4, 6, 8):
        torch.set_num_threads(threads)
        layer = linear(64, outputs, torch.float32)
        layer.pack()
        for rows in (1, 4, 5, 17, 44, ROWS):
            assert torch.equal(layer(x[:rows]), alone(x)[:rows]), f"{rows} rows on {threads} threads"
            torch.set_num_threads(1)
            assert torch.equal(layer(x[:rows]), alone(x)[:rows]), f"{rows} rows on one of {threads}"
            torch.set_num_threads(threads)


def test_a_linear_layer_keeps_leading_axes() -> None:
    layer = linear(8, 3, torch.float32, bias=False)
    assert layer(draw(2, 5, 8)).shape == (2, 5, 3)
    assert layer(draw(8)).shape == (3,)


@settings(max_examples=20)
@given(count=st.integers(1, 70), block=st.integers(1, 64))
def test_products_in_blocks(count: int, block: int) -> None:
    """The form a GPU runs: every product has the same number of rows, whatever is asked for."""
    layer = linear(48, 24, torch.float32)
    asked: list[int] = []
    multiply = layer._multiply

    def watch(rows: Tensor) -> Tensor:
        asked.append(rows.shape[0])
        return multiply(rows)

    layer._multiply = watch  # type: ignore[method-assign]
    x = draw(count, 48)
    out = layer.multiply_in_blocks(x, block)
    assert set(asked) == {block}
    assert out.shape[0] == len(asked) * block
    assert torch.allclose(out[:count], layer(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 3, 100, 160, 768])
def test_rows_of_activations_and_norms(size: int, dtype: torch.dtype) -> None:
    """Sizes that fill no vector register, too: the last elements of a tensor must not be special."""
    x = draw(ROWS, 2 * size, dtype=dtype)
    assert_rows_are_independent(silu, x)
    assert_rows_are_independent(gated_silu, x)
    norm = RMSNorm(2 * size, 1e-5).to(dtype).requires_grad_(False)
    assert_rows_are_independent(norm, x)


def test_silu_is_torchs_at_every_size_of_number() -> None:
    x = torch.tensor([-200.0, -90.0, -20.0, -1.0, -0.0, 0.0, 1e-8, 1.0, 20.0, 200.0])
    with torch.inference_mode():
        assert torch.allclose(silu(x), torch.nn.functional.silu(x), atol=1e-6)


@pytest.mark.parametrize(("kv_heads", "group", "size"), [(2, 2, 16), (4, 1, 64), (2, 8, 128), (1, 3, 24)])
@pytest.mark.parametrize("position", [5, 63, 64, 255, 256, 500, 511, 512, 1000])
def test_attention_over_lanes(kv_heads: int, group: int, size: int, position: int) -> None:
    """A row's result depends neither on how many rows attend nor on how far the longest of them reaches."""
    rows, capacity = 5, 1536
    query = draw(rows, kv_heads, group, size)
    key, value = draw(rows, kv_heads, capacity, size), draw(rows, kv_heads, capacity + 1, size)[:, :, 1:]
    positions = torch.tensor([position, 0, capacity - 1, 70, position])

    def run(count: int, length: int) -> Tensor:
        mask = torch.where(torch.arange(length) > positions[:count, None], -torch.inf, 0.0)[:, None, None]
        return attend(query[:count], key[:count, :, :length], value[:count, :, :length], mask)

    alone = run(1, -(-(position + 1) // 64) * 64)
    for count in (1, 2, 5):
        for length in (1024, capacity):
            assert torch.equal(run(count, length)[:1], alone)
    full = torch.nn.functional.scaled_dot_product_attention(
        query[:1], key[:1, :, : position + 1], value[:1, :, : position + 1]
    )
    assert torch.allclose(alone, full, atol=1e-5)
