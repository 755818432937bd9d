"""MiniCPM4 transformer blocks in the three ways VoxCPM2 runs them.

* :meth:`Stack.local`: a short sequence, every position sees every other (local encoder, local DiT);
* :meth:`Stack.prefill`: one piece of one request's prefix, behind the keys and values of the pieces before it;
* :meth:`Stack.step`: one position for each of many rows, behind each row's own lane.

Projections that read the same input are fused (query, key and value; gate and up), which the loader undoes by name.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from voxr_ray.voxcpm2.config import LMConfig
from voxr_ray.voxcpm2.ops import Linear, RMSNorm, attend, attend_local, gated_silu, widened

Angles: TypeAlias = Tensor | tuple[Tensor, Tensor]
"""Of some positions, ``(count, 1, head_dim / 2)``: complex numbers where a stack is packed, else cosines and sines."""


@dataclass(slots=True)
class LayerCache:
    """Keys and values of one layer: ``(rows, kv_heads, positions, head_dim)`` each.

    float32 on a CPU, where attention is computed in float32 and converting at every step would cost more than the
    memory; the model's dtype elsewhere.
    """

    key: Tensor
    value: Tensor

    def part(self, rows: slice) -> LayerCache:
        """Some rows, in the same memory."""
        return LayerCache(self.key[rows], self.value[rows])


def cache_tensors(layers: list[LayerCache]) -> list[Tensor]:
    """Key, value, key, value …, layer by layer."""
    return [tensor for layer in layers for tensor in (layer.key, layer.value)]


def lazy_zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose memory, on a CPU, is first touched when it is first used.

    torch writes its zeros at once, and numpy asks for huge pages, each of which the system clears whole at the first
    touch: for the lanes of a batch either takes seconds, and whoever is running waits. Pages of an anonymous map are
    zero, and small.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)


class Rope(nn.Module):
    """LongRoPE tables in float32 for positions below ``length``.

    Source: OpenBMB/VoxCPM, ``MiniCPMLongRoPE``. Long factors apply when the model's limit exceeds the original one,
    and cosines and sines are scaled by ``sqrt(1 + ln(limit / original) / ln(original))``.
    """

    def __init__(self, config: LMConfig, length: int) -> None:
        super().__init__()
        limit = config.max_position_embeddings
        original = config.rope_scaling.original_max_position_embeddings
        factors = config.rope_scaling.long_factor if limit > original else config.rope_scaling.short_factor
        # The tables are made on the CPU whatever the default device: a meta network has no use for them, and a
        # device's own sine would make them differ from machine to machine.
        with torch.device("cpu"):
            size = config.head_dim
            frequency = 1.0 / (config.rope_theta ** (torch.arange(0, size, 2).float() / size))
            positions = torch.arange(min(length, limit), dtype=torch.float32)
            angles = torch.outer(positions, 1.0 / torch.tensor(factors, dtype=torch.float32)) * frequency
            scale = math.sqrt(1.0 + math.log(limit / original) / math.log(original))
            self.register_buffer("cos", angles.cos() * scale, persistent=False)
            self.register_buffer("sin", angles.sin() * scale, persistent=False)
        self.cos: Tensor
        self.sin: Tensor
        self.turns: Tensor | None = None
        """Both as complex numbers, once the stack is packed."""

    def pack(self) -> None:
        """Make the complex table."""
        self.turns = torch.complex(self.cos, self.sin)

    def at(self, positions: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``(count, head_dim / 2)`` of the given positions."""
        return self.cos[positions], self.sin[positions]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate-half embedding of ``(..., heads, head_dim)`` by angles broadcastable to ``(..., 1, head_dim / 2)``.

    Source: OpenBMB/VoxCPM, ``apply_rotary_pos_emb``.
    """
    first, second = widened(x).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotate_pairs(x: Tensor, turns: Tensor) -> Tensor:
    """What :func:`rotate` does, for heads whose halves are interleaved: one product in place of seven operators.

    Args:
        x: ``(..., heads, head_dim)``, elements ``i`` and ``i + head_dim / 2`` of a head side by side.
        turns: complex64 ``(..., 1, head_dim / 2)``.

    Returns:
        float32, in the order of ``x``.
    """
    pairs = torch.view_as_complex(widened(x).view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


class Layer(nn.Module):
    """One block: attention and gated feed-forward, each behind a norm and added to its input."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.residual_scale = config.residual_scale
        hidden = config.hidden_size
        self.input_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.qkv = Linear(hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.o_proj = Linear(self.heads * self.head_dim, hidden, bias=False)
        self.post_attention_layernorm = RMSNorm(hidden, config.rms_norm_eps)
        self.gate_up = Linear(hidden, 2 * config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, hidden, bias=False)

    def interleave(self) -> None:
        """Reorder the weights of queries and keys for :func:`rotate_pairs`.

        Scores are sums over a head's elements, so an order that both share changes nothing but the rounding. The layer
        is of no use to :func:`rotate` from here on.
        """
        weight = self.qkv.weight.detach()
        heads = weight[: (self.heads + self.kv_heads) * self.head_dim].view(-1, 2, self.head_dim // 2, weight.shape[-1])
        paired = heads.transpose(1, 2).reshape(-1, weight.shape[-1])
        self.qkv.weight = nn.Parameter(torch.cat((paired, weight[len(paired) :])), requires_grad=False)

    def hand_norms_over(self) -> None:
        """Have the products behind the norms multiply by the norms' weights, where that rounds nothing anew."""
        for norm, linear in ((self.input_layernorm, self.qkv), (self.post_attention_layernorm, self.gate_up)):
            if (factors := norm.hand_over()) is not None:
                linear.scale_inputs(factors)

    def project(self, x: Tensor) -> Tensor:
        """Queries, keys and values of ``x`` ``(..., hidden)``: ``(..., (heads + 2 * kv_heads) * head_dim)``."""
        out: Tensor = self.qkv(self.input_layernorm(x))
        return out

    def rotated(self, projected: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries ``(..., heads, head_dim)``, rotated keys and values ``(..., kv_heads, head_dim)``.

        Queries and keys come out in float32 when rotated, in the dtype of what is projected otherwise.
        """
        fused = projected.view(*projected.shape[:-1], self.heads + 2 * self.kv_heads, self.head_dim)
        query_key = fused[..., : self.heads + self.kv_heads, :]
        if isinstance(angles, Tensor):
            query_key = rotate_pairs(query_key, angles)
        elif angles is not None:
            query_key = rotate(query_key, *angles)
        return (
            query_key[..., : self.heads, :],
            query_key[..., self.heads :, :],
            fused[..., self.heads + self.kv_heads :, :],
        )

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Everything after the attention: ``x`` and the attended heads ``(..., heads * head_dim)`` to the output."""
        if attended.dtype != x.dtype:
            attended = attended.to(x.dtype)
        x = self._add(x, self.o_proj(attended))
        return self._add(x, self.down_proj(gated_silu(self.gate_up(self.post_attention_layernorm(x)))))

    def _add(self, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch if self.residual_scale == 1.0 else x + branch * self.residual_scale

    def attend_local(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of ``query`` ``(rows, queries, heads, head_dim)`` over a whole short sequence.

        ``key`` and ``value`` are ``(rows, positions, kv_heads, head_dim)``. Gives ``(rows, queries, heads *
        head_dim)``.
        """
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        if query.is_cuda:
            return self.attend_sequence(query, key, value, None)
        out = attend_local(query.transpose(1, 2), key, value)
        return out.transpose(1, 2).reshape(*query.shape[:2], self.heads * self.head_dim)

    def attend_sequence(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of ``query`` ``(rows, queries, heads, head_dim)`` over cached ``(rows, kv_heads, positions, …)``.

        ``mask`` is ``(queries, positions)`` or ``None``. Gives ``(rows, queries, heads * head_dim)``.
        """
        rows, queries = query.shape[:2]
        group = self.heads // self.kv_heads
        grouped = query.view(rows, queries, self.kv_heads, group, self.head_dim).permute(0, 2, 3, 1, 4)
        grouped = grouped.reshape(rows, self.kv_heads, group * queries, self.head_dim)
        spread = None if mask is None else mask.repeat(group, 1)
        out = attend(grouped, key, value, spread).view(rows, self.kv_heads, group, queries, self.head_dim)
        return out.permute(0, 3, 1, 2, 4).reshape(rows, queries, self.heads * self.head_dim)


class Stack(nn.Module):
    """A stack of blocks with a final norm.

    Source: OpenBMB/VoxCPM, ``MiniCPMModel``.

    Args:
        config: Shape of the blocks.
        length: Longest sequence it will meet; the model's own limit if not given.
    """

    def __init__(self, config: LMConfig, length: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens: nn.Embedding | None = None
        if config.vocab_size:
            # Without initial values: on the meta device torch would load its compiler, a second's work, to draw them.
            empty = torch.empty(config.vocab_size, config.hidden_size)
            self.embed_tokens = nn.Embedding.from_pretrained(empty, freeze=False)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = None if config.no_rope else Rope(config, length or config.max_position_embeddings)
        self._ready = False

    def new_cache(self, rows: int, positions: int, *, dtype: torch.dtype, device: torch.device) -> list[LayerCache]:
        """Zeroed caches, one per layer. Zeros matter: attention multiplies masked positions by zero, not by NaN."""
        shape = (rows, self.config.num_key_value_heads, positions, self.config.head_dim)
        return [
            LayerCache(lazy_zeros(shape, dtype=dtype, device=device), lazy_zeros(shape, dtype=dtype, device=device))
            for _ in self.layers
        ]

    def blocks(self) -> list[Layer]:
        """The blocks, in order."""
        return list(self.layers)  # type: ignore[arg-type]

    def local(self, x: Tensor, keep: slice, projected: Tensor | None = None) -> Tensor:
        """Bidirectional pass over a short sequence.

        Args:
            x: ``(rows, length, hidden)``.
            keep: Positions whose output is wanted; the last block computes no others.
            projected: What the first block's :meth:`Layer.project` makes of ``x``, where that is known already.

        Returns:
            ``(rows, kept, hidden)``.
        """
        angles = self._angles(slice(0, x.shape[1]))
        last = len(self.layers) - 1
        for index, layer in enumerate(self.blocks()):
            if index > 0 or projected is None:
                projected = layer.project(x)
            query, key, value = layer.rotated(projected, angles)
            if index == last:
                query, x = query[:, keep], x[:, keep]
            x = layer.finish(x, layer.attend_local(query, key, value))
        return self.norm(x)  # type: ignore[no-any-return]

    def prefill(self, x: Tensor, cache: list[LayerCache], start: int) -> Tensor:
        """Causal pass over positions ``start …`` of one request; its keys and values go to the cache.

        Args:
            x: ``(1, piece, hidden)``.
            cache: The request's handoff cache, filled below ``start``.
            start: First position of the piece.

        Returns:
            ``(1, piece, hidden)``.
        """
        end = start + x.shape[1]
        angles = self._angles(slice(start, end))
        seen = torch.arange(end, device=x.device)
        mask = torch.where(seen[None, :] > seen[start:, None], -torch.inf, 0.0)
        for layer, stored in zip(self.blocks(), cache, strict=True):
            query, key, value = layer.rotated(layer.project(x), angles)
            stored.key[:, :, start:end] = key.transpose(1, 2)
            stored.value[:, :, start:end] = value.transpose(1, 2)
            attended = layer.attend_sequence(query, stored.key[:, :, :end], stored.value[:, :, :end], mask)
            x = layer.finish(x, attended)
        return self.norm(x)  # type: ignore[no-any-return]

    def step(self, x: Tensor, cache: list[LayerCache], positions: Tensor, mask: Tensor) -> Tensor:
        """One position for each row.

        Args:
            x: ``(rows, hidden)``.
            cache: Lanes; rows above ``rows`` are left alone.
            positions: int64 ``(rows,)``, where each row's key and value go.
            mask: float32 ``(rows, 1, 1, length)``, minus infinity above each row's position; its length says how far
                the lanes are read, a multiple of 64.

        Returns:
            ``(rows, hidden)``.
        """
        rows, length = x.shape[0], mask.shape[-1]
        each = torch.arange(rows, device=x.device)
        angles = self._angles(positions)
        for layer, stored in zip(self.blocks(), cache, strict=True):
            query, key, value = layer.rotated(layer.project(x), angles)
            stored.key[each, :, positions] = key.to(stored.key.dtype)
            stored.value[each, :, positions] = value.to(stored.value.dtype)
            grouped = query.reshape(rows, layer.kv_heads, layer.heads // layer.kv_heads, layer.head_dim)
            attended = attend(grouped, stored.key[:rows, :, :length], stored.value[:rows, :, :length], mask)
            x = layer.finish(x, attended.reshape(rows, -1))
        return self.norm(x)  # type: ignore[no-any-return]

    def pack(self) -> None:
        """Prepare for inference what layers have in common; before the layers of this stack are packed."""
        if self._ready:
            return
        self._ready = True
        if self.rope is not None:
            self.rope.pack()
        for layer in self.blocks():
            if self.rope is not None:
                layer.interleave()
            layer.hand_norms_over()

    def _angles(self, positions: Tensor | slice) -> Angles | None:
        if self.rope is None:
            return None
        if self.rope.turns is not None:
            return self.rope.turns[positions].unsqueeze(-2)
        cos, sin = self.rope.at(positions)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)
