"""A look, at start-up, whether this platform keeps rows independent.

Bit equality rests on what libraries do not promise in writing: that a matrix product sums a row in the same order
whatever stands beside it. It was measured on the platforms the project is tested on; this finds out on the one at
hand, with the network's own layers, in well under a second for small models and a few for the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.ops import Linear, RMSNorm, attend, silu

ROWS = 17
PARTS = (slice(0, 1), slice(4, 5), slice(0, 2), slice(1, 6), slice(0, 16))
"""Which rows are computed again without the others."""


@torch.inference_mode()
def row_dependent_operations(network: VoxCPM2) -> list[str]:
    """Names of the operations that give a row other bits in other company, or on one thread; empty where all hold.

    Covers every shape of linear layer, normalisation and activation of the network, attention over lanes, and the
    decoder.
    """
    generator = torch.Generator(device="cpu").manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(network.device)

    return [name for name, operation, x in _operations(network, draw) if not _rows_are_independent(operation, x)]


def _rows_are_independent(operation: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    together = operation(x)
    if not x.is_cuda and not torch.equal(_on_one_thread(operation, x), together):
        return False
    return all(torch.equal(operation(x[part].clone()), together[part]) for part in PARTS)


def _on_one_thread(operation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """As those compute who share the rows of a wide batch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return operation(x)
    finally:
        torch.set_num_threads(threads)


def _operations(
    network: VoxCPM2, draw: Callable[..., Tensor]
) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
    """Each distinct operation with an input of :data:`ROWS` rows."""
    seen: set[tuple[object, ...]] = set()
    for name, module in network.named_modules():
        if isinstance(module, Linear):
            size = module.inputs
            key: tuple[object, ...] = (Linear, module.inputs, module.outputs, module.packed)
        elif isinstance(module, RMSNorm):
            size = module.weight.numel()
            key = (RMSNorm, size)
        else:
            continue
        if key not in seen:
            seen.add(key)
            dtype = torch.float32 if name.startswith("audio_vae") else network.dtype
            yield f"{type(module).__name__} {name}", module, draw(ROWS, size, dtype=dtype)
    config = network.config.lm_config
    yield "silu", silu, draw(ROWS, config.intermediate_size, dtype=network.dtype)
    yield (
        "attention",
        _attention(network, draw),
        draw(ROWS, config.num_attention_heads * config.head_dim, dtype=torch.float32),
    )
    yield (
        "local attention",
        _local_attention(network),
        draw(
            ROWS,
            5 * (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim,
            dtype=torch.float32,
        ),
    )
    yield "decoder", _decoder(network), draw(ROWS, 2 * network.config.feat_dim, dtype=torch.float32)


def _attention(network: VoxCPM2, draw: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """Attention over lanes, read further the more rows there are, as a step does."""
    config = network.config.lm_config
    shape = (ROWS, config.num_key_value_heads, 576, config.head_dim)
    key, value = draw(*shape, dtype=torch.float32), draw(*shape, dtype=torch.float32)

    def operation(query: Tensor) -> Tensor:
        rows = query.shape[0]
        length = 64 if rows == 1 else 576
        mask = torch.where(torch.arange(length, device=query.device) > 50, -torch.inf, 0.0)
        grouped = query.view(rows, config.num_key_value_heads, -1, config.head_dim)
        # All rows read the same lane, since the rows that are left out would shift the others.
        lane_key, lane_value = (tensor[:1, :, :length].expand(rows, -1, -1, -1) for tensor in (key, value))
        return attend(grouped, lane_key, lane_value, mask).reshape(rows, -1)

    return operation


def _local_attention(network: VoxCPM2) -> Callable[[Tensor], Tensor]:
    """Attention over a short sequence, as the local networks run it."""
    layer = network.base_lm.blocks()[0]

    def operation(x: Tensor) -> Tensor:
        fused = x.view(x.shape[0], 5, layer.heads + 2 * layer.kv_heads, layer.head_dim)
        query, key, value = torch.split(fused, [layer.heads, layer.kv_heads, layer.kv_heads], dim=2)
        return layer.attend_local(query, key, value).flatten(1)

    return operation


def _decoder(network: VoxCPM2) -> Callable[[Tensor], Tensor]:
    vae = network.audio_vae

    def operation(frames: Tensor) -> Tensor:
        rows = frames.shape[0]
        audio, _ = vae.decode(frames.view(rows, 2, -1), vae.decoder.new_state(rows))
        return audio

    return operation
