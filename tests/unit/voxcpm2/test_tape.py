"""Recorded functions: the bits of the function, in its shapes, without it; and what cannot be recorded still runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from voxr_ray.voxcpm2.tape import Recorded, Recorder

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(32, 32, generator=GENERATOR)
TABLE = torch.randn(64, 32, generator=GENERATOR)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def product_and_sum(x: Tensor) -> tuple[Tensor, ...]:
    """What an optimiser of graphs may make one operator of."""
    return (torch.mm(x, WEIGHT) + x,)


def composites(x: Tensor) -> tuple[Tensor, ...]:
    """Operators made of others, lists in and out, arguments left out and given by name."""
    rows = len(x)
    first, second = F.linear(x, WEIGHT, bias=TABLE[0]).chunk(2, dim=-1)
    query = x.view(rows, 2, 4, 4).transpose(1, 2)
    attended = F.scaled_dot_product_attention(query, query, query)
    parts = torch.split(torch.cat((first, second), dim=-1), 8, dim=1)
    scaled = torch.div(first, second.exp().add_(1.0), out=torch.empty_like(first))
    return attended.reshape(rows, -1), torch.stack(parts).clamp(min=-1), scaled, x.double().float().contiguous()


def attended_half(x: Tensor) -> tuple[Tensor, ...]:
    narrow = x.to(torch.bfloat16)
    return (F.pad(narrow @ narrow.t(), (0, 3)).float().softmax(dim=-1), x[:, 0] > 0)


def quiet(recorded: Recorded, caplog: pytest.LogCaptureFixture, *inputs: Tensor) -> tuple[Tensor, ...]:
    out = recorded(*inputs)
    assert not caplog.records, "nothing was given up"
    return out


@pytest.mark.parametrize("function", [product_and_sum, composites, attended_half])
def test_a_tape_gives_the_bits_of_the_function(
    function: Callable[..., tuple[Tensor, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def counted(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(x))
        return function(x)

    recorded = Recorded(counted)
    with torch.inference_mode():
        for rows in (3, 5, 3, 5, 3):
            x = draw(rows, 32)
            for one, other in zip(quiet(recorded, caplog, x), function(x), strict=True):
                assert torch.equal(one, other)
                assert one.dtype == other.dtype
    assert calls == [3, 5], "once for each shape"
    assert recorded.kept == 2


def test_it_writes_into_its_inputs_as_the_function_does(caplog: pytest.LogCaptureFixture) -> None:
    def take(x: Tensor, positions: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        each = torch.arange(len(x))
        cache[each, :, positions] = x.view(len(x), 2, -1)
        return (cache[:, :, :8].sum(dim=(1, 2)),)

    recorded = Recorded(take)
    with torch.inference_mode():
        lanes = torch.zeros(6, 2, 16, 16)
        plain = lanes.clone()
        for step in range(4):
            # Other rows of the same lanes, and of others twice as many: what a tape knows is shapes, not places.
            start = step % 2 * 3
            x, positions = draw(3, 32), torch.tensor([step, 2 * step, 5])
            (out,) = quiet(recorded, caplog, x, positions, lanes[start : start + 3])
            assert torch.equal(out, take(x, positions, plain[start : start + 3])[0])
            assert torch.equal(lanes, plain)
    assert recorded.kept == 1


def test_what_follows_from_constants_is_computed_once() -> None:
    x = draw(3, 32)
    recorder = Recorder((x,))
    with torch.inference_mode(), recorder:
        x + TABLE[torch.arange(3)].mul(2.0).exp()
    assert [call.schema.name for call in recorder.calls] == ["aten::add"]


def test_what_is_no_number_is_recorded_too(caplog: pytest.LogCaptureFixture) -> None:
    recorded = Recorded(product_and_sum)
    broken = draw(3, 32)
    broken[1] = torch.nan
    with torch.inference_mode():
        quiet(recorded, caplog, broken)
        x = draw(3, 32)
        assert torch.equal(quiet(recorded, caplog, x)[0], product_and_sum(x)[0])


def looks(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2 if x.sum() > 0 else x * 3,)


def selects(x: Tensor) -> tuple[Tensor, ...]:
    return (x[x > 0],)


def draws(x: Tensor) -> tuple[Tensor, ...]:
    return (x + torch.rand(x.shape, generator=torch.Generator().manual_seed(1)),)


def counts(x: Tensor, seen: Tensor = torch.zeros(1)) -> tuple[Tensor, ...]:  # noqa: B008
    seen.add_(1)
    return (x * 1.0,)


def fills(x: Tensor) -> tuple[Tensor, ...]:
    buffer = torch.zeros(3, 32)
    buffer.copy_(x)
    return (buffer * 2,)


def gives_a_constant_room(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.mul(x, 2.0, out=torch.empty(3, 32)),)


@pytest.mark.parametrize("function", [looks, selects, draws, counts, fills, gives_a_constant_room])
def test_what_a_tape_could_not_repeat_is_called_instead(
    function: Callable[..., tuple[Tensor, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    recorded = Recorded(function)
    with torch.inference_mode():
        for x in (draw(3, 32), -draw(3, 32).abs(), draw(3, 32).abs()):
            assert torch.equal(recorded(x)[0], function(x)[0])
    assert recorded.kept == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "said once"


def test_one_tensor_given_twice_is_not_recorded_and_two_are(caplog: pytest.LogCaptureFixture) -> None:
    def weighed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x - 2 * y,)

    recorded = Recorded(weighed)
    x, y = draw(3, 32), draw(3, 32)
    with torch.inference_mode():
        assert torch.equal(quiet(recorded, caplog, x, x)[0], -x)
        assert torch.equal(quiet(recorded, caplog, x, y)[0], x - 2 * y)
        assert torch.equal(quiet(recorded, caplog, y, x)[0], y - 2 * x)
    assert recorded.kept == 1


def test_scalars_are_recorded(caplog: pytest.LogCaptureFixture) -> None:
    recorded = Recorded(lambda x: (x.sum(), x.amax(dim=0)))
    with torch.inference_mode():
        for x in (draw(3, 32), draw(3, 32)):
            assert torch.equal(quiet(recorded, caplog, x)[0], x.sum())
    assert recorded.kept == 1


def test_a_tape_that_gives_other_bits_is_thrown_away(caplog: pytest.LogCaptureFixture) -> None:
    factor = [1.0]

    def drifting(x: Tensor) -> tuple[Tensor, ...]:
        out = x * factor[0]
        x.mul_(2.0)  # called again with the same tensor, it gives something else
        return (out,)

    recorded = Recorded(drifting)
    with torch.inference_mode():
        recorded(draw(2, 32))
        x = draw(2, 32)
        assert torch.equal(recorded(x.clone())[0], x)
    assert recorded.kept == 0
    assert "other bits" in caplog.text


def test_an_error_of_the_function_is_the_callers() -> None:
    def refuse(x: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        Recorded(refuse)(draw(1, 32))


def test_the_shape_that_was_not_used_for_longest_is_forgotten() -> None:
    shapes = []

    def noted(x: Tensor) -> tuple[Tensor, ...]:
        shapes.append(len(x))
        return product_and_sum(x)

    recorded = Recorded(noted, most=2)
    with torch.inference_mode():
        for rows in (1, 2, 1, 3, 1, 2):
            recorded(draw(rows, 32))
    assert shapes == [1, 2, 3, 2]
    assert recorded.kept == 2


def test_a_layout_may_have_to_come_again_before_it_is_recorded() -> None:
    calls = []

    def noted(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(len(x))
        return product_and_sum(x)

    recorded = Recorded(noted, after=2, most=2)
    with torch.inference_mode():
        for rows in (3, 5, 3, 5, 3, 3, 5, 3, 5):
            x = draw(rows, 32)
            assert torch.equal(recorded(x)[0], product_and_sum(x)[0])
        assert calls == [3, 5, 3, 5, 3, 5], "twice called, once recorded"
        for rows in (1, 2, 4, 1, 2, 4, 1, 2, 4):
            recorded(draw(rows, 32))
    assert recorded.kept == 2, "who is forgotten between two calls begins again"


def test_another_layout_of_the_same_shape_is_another_tape(caplog: pytest.LogCaptureFixture) -> None:
    def flattened(x: Tensor) -> tuple[Tensor, ...]:
        return (x.reshape(-1).mul(2.0),)

    recorded = Recorded(flattened)
    square = draw(32, 32)
    with torch.inference_mode():
        for x in (square, square.t(), square[:1].expand(32, 32), square.double(), draw(32, 64)[:, ::2]):
            assert torch.equal(quiet(recorded, caplog, x)[0], flattened(x)[0])
    assert recorded.kept == 5


def test_threads_that_meet_a_shape_together_record_it_once() -> None:
    begun, calls = threading.Barrier(4), []

    def counted(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(threading.current_thread())
        return product_and_sum(x)

    recorded = Recorded(counted)
    inputs = [draw(3, 32) for _ in range(4)]
    outputs: dict[int, Tensor] = {}

    def call(index: int) -> None:
        with torch.inference_mode():
            begun.wait()
            outputs[index] = recorded(inputs[index])[0]

    threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert all(torch.equal(outputs[index], product_and_sum(x)[0]) for index, x in enumerate(inputs))


def test_other_graphs_of_the_thread_stay_optimised() -> None:
    recorded = Recorded(product_and_sum)
    with torch.inference_mode():
        recorded(draw(3, 32))
    assert torch._C._get_graph_executor_optimize()
