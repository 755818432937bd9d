"""Row-invariant building blocks: linear layers, normalisation, SiLU and attention.

Each operation gives a row the same bits whatever rows are computed beside it and on however many threads, which is
what lets a batch of strangers equal their solo renders. Where torch's own operation does not promise that, the
comment beside its replacement says what goes wrong.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voxr_ray.voxcpm2 import determinism as determinism  # before the first matrix product of the process

MIN_ROWS_FLOAT32 = 4
MIN_ROWS_HALF = 8
"""Matrix products of fewer rows take other kernels with another summation order, so they are padded to this many."""

NARROW_OUTPUTS, MIN_ROWS_NARROW = 16, 16
"""Rows of a product with at most so many outputs: with fewer, MKL shares products of exactly sixteen outputs out among
threads by another rule (seen on a processor without AVX-512), and the bits depend on the number of threads."""

FEW_OUTPUTS, OUTPUTS_PER_THREAD = 8, 12
"""MKL sums in another order where a thread's share of the outputs is less than twelve, so weights are padded to twelve
for each thread. Up to eight outputs it does not share out. Seen on a processor without AVX-512."""

MOST_ROWS_AMX = 32
"""Rows of a product in bfloat16 on a processor with AMX: oneDNN takes another order of summation beyond them."""

BLOCK_ROWS = 64
"""Rows of every matrix product on a GPU, where the kernel is chosen by the number of rows at every size."""

PACK_ELEMENTS = 256 * 1024
"""Weights of at least this many elements are packed for oneDNN; for smaller ones the call itself costs more."""

VALUE_BLOCK = 256
"""Positions that attention sums in one matrix product. MKL changes its summation order between inner sizes below and
above 512, so longer sums are made of blocks of a fixed size, added in a fixed order."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and packs weights of this dtype on this processor; bfloat16 needs AVX-512 or its like."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    mkldnn: Any = torch.ops.mkldnn
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(mkldnn._is_mkldnn_bf16_supported()))


@cache
def most_rows(dtype: torch.dtype) -> int:
    """Rows that a matrix product may have on this CPU; more are multiplied in several."""
    narrow = dtype != torch.float32 and torch.cpu._is_amx_tile_supported()
    return MOST_ROWS_AMX if narrow else sys.maxsize


class Linear(nn.Module):
    """Affine map of the last axis whose rows do not depend on each other.

    ``y[..., o] = sum_i x[..., i] * weight[o, i] + bias[o]``, with row counts padded to a minimum. :meth:`pack` trades
    the weight for oneDNN's blocked layout, after which the layer can only infer.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self._product: Callable[[Tensor], Tensor] | None = None
        self._filler: Tensor | None = None
        self._packed = False

    def pack(self) -> None:
        """Prepare the weight for inference on this CPU: packed where that pays and the build of torch can do it.

        A weight that is not packed is multiplied without the layers of dispatch of ``F.linear``, with the same bits.
        """
        weight = self.weight
        if self._product is not None or weight.device.type != "cpu":
            return
        least = self._least_rows(weight.dtype)
        self._filler = weight.new_zeros(least, self.inputs)
        bias = None if self.bias is None else self.bias.detach()
        if weight.numel() < PACK_ELEMENTS or not can_pack(weight.dtype):
            self._product = self._unpacked(weight.detach(), bias)
            return
        mkldnn: Any = torch.ops.mkldnn
        # The layout depends on the batch-size hint alone, never on the rows that are multiplied later.
        packed = mkldnn._reorder_linear_weight(weight.detach(), 16)
        self._product = lambda rows: mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
        self._packed = True
        self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    @property
    def packed(self) -> bool:
        """Whether the weight is packed."""
        return self._packed

    def scale_inputs(self, factors: Tensor) -> None:
        """Multiply inputs by ``factors`` ``(inputs,)`` from here on, by way of the weight; before it is packed."""
        self.weight = nn.Parameter(self.weight.detach() * factors, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., inputs)`` to ``(..., outputs)``, same dtype."""
        flat = x.dim() == 2
        rows = x if flat else x.reshape(-1, self.inputs)
        count = rows.shape[0]
        if x.is_cuda:
            out = self.multiply_in_blocks(rows, BLOCK_ROWS)[:count]
        elif count > (most := most_rows(x.dtype)):
            out = self.multiply_in_blocks(rows, most)[:count]
        else:
            least = self._least_rows(x.dtype)
            out = self._multiply(self._filled(rows, least))[:count] if count < least else self._multiply(rows)
        return out if flat else out.view(*x.shape[:-1], self.outputs)

    def multiply_in_blocks(self, rows: Tensor, block: int) -> Tensor:
        """The product of ``rows`` ``(count, inputs)`` in matrix products of exactly ``block`` rows each.

        For libraries that choose a kernel, and with it an order of summation, by the shape of the product.

        Returns:
            ``(count rounded up to a multiple of block, outputs)``.
        """
        padded = F.pad(rows, (0, 0, 0, -rows.shape[0] % block))
        parts = [self._multiply(part) for part in torch.split(padded, block)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _unpacked(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        outputs, wide = self.outputs, self._padded_outputs()
        if weight.dtype != torch.float32 or wide == outputs:
            return self._plain(weight, bias)
        weight = F.pad(weight, (0, 0, 0, wide - outputs))
        product = self._plain(weight, None if bias is None else F.pad(bias, (0, wide - outputs)))
        return lambda rows: product(rows)[:, :outputs].contiguous()

    def _padded_outputs(self) -> int:
        if self.outputs == 1:  # by a vector, MKL multiplies the last of an odd number of rows in another order
            return 2
        if self.outputs <= FEW_OUTPUTS:
            return self.outputs
        return max(self.outputs, OUTPUTS_PER_THREAD * torch.get_num_threads())

    @staticmethod
    def _plain(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        matrix = weight.t()
        if bias is None:
            return lambda rows: torch.mm(rows, matrix)
        return lambda rows: torch.addmm(bias, rows, matrix)

    def _least_rows(self, dtype: torch.dtype) -> int:
        if self.outputs <= NARROW_OUTPUTS:
            return MIN_ROWS_NARROW
        return MIN_ROWS_FLOAT32 if dtype == torch.float32 else MIN_ROWS_HALF

    def _filled(self, rows: Tensor, least: int) -> Tensor:
        if self._filler is None or len(self._filler) < least:
            return F.pad(rows, (0, 0, 0, least - rows.shape[0]))
        return torch.cat((rows, self._filler[rows.shape[0] : least]))

    def _multiply(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight, self.bias) if self._product is None else self._product(rows)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation of the last axis.

    Source: OpenBMB/VoxCPM, ``rms_layernorm``.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self._floor: Tensor | None = None
        self._factors: Tensor | None = None

    def pack(self) -> None:
        """Compute once what only depends on the weight, which must not change from here on.

        With the weight times the root of the size, ``x / sqrt(length^2 + size * eps)`` needs no division by the size.
        In narrow dtypes the product would round the weight, so they keep the longer way.
        """
        if self._floor is None and self.weight.dtype == torch.float32 and self.weight.device.type == "cpu":
            size = self.weight.numel()
            self._floor = torch.full((1,), size * self.eps)
            self._factors = self.weight.detach() * math.sqrt(size)

    def hand_over(self) -> Tensor | None:
        """Leave the weight to whoever reads the output: factors ``(size,)``, or ``None`` where that would round them.

        From here on the output lacks them.
        """
        self.pack()
        factors, self._factors = self._factors, None
        return factors

    def forward(self, x: Tensor) -> Tensor:
        """Any shape ending in ``size``; statistics in float32.

        Half of the operators of torch's own, which a CPU runs one by one: the length of a row in one pass, then
        ``x / sqrt(length^2 / size + eps)``.
        """
        if torch.is_grad_enabled():
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        if self._floor is not None:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            scaled = x * torch.addcmul(self._floor, length, length).rsqrt_()
            return scaled if self._factors is None else scaled.mul_(self._factors)
        wide = widened(x)
        size = x.shape[-1]
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        factor = length.square_().mul_(1.0 / size).add_(self.eps).rsqrt_()
        normed: Tensor = (wide * factor).to(x.dtype).mul_(self.weight)
        return normed


def joined(parts: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """``torch.cat`` along the first axis; parts on the meta device give the shape alone.

    For that shape torch would load its compiler, which takes a second of every start.
    """
    if not parts[0].is_meta:
        return torch.cat(parts)
    return parts[0].new_empty(sum(len(part) for part in parts), *parts[0].shape[1:])


def widened(x: Tensor) -> Tensor:
    """``x`` in float32; asking first is cheaper than a conversion that does nothing."""
    return x if x.dtype == torch.float32 else x.float()


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``.

    Written with ``exp``: torch's own SiLU rounds the elements at the end of its range otherwise than the vectorised
    ones, so that a value would depend on where in the batch it stands.
    """
    if torch.is_grad_enabled():
        return F.silu(x)
    wide = widened(x)
    denominator = wide.neg().exp_().add_(1.0)
    out = torch.div(wide, denominator, out=denominator)
    return out if wide is x else out.to(x.dtype)


def gated_silu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of a fused projection ``(..., 2 * size)``, gate first; gives ``(..., size)``."""
    gate, up = gate_up.chunk(2, dim=-1)
    if torch.is_grad_enabled():
        return silu(gate) * up
    return silu(gate).mul_(up)


def attend_local(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over a short sequence whose length never changes, in float32.

    torch's own attention works through each row and head by itself there, so that rows keep their bits; over lanes,
    whose length differs from step to step, it does not. On a GPU it chooses a kernel by the size of the batch.

    Args:
        query: ``(rows, heads, queries, head_dim)``.
        key: ``(rows, kv_heads, positions, head_dim)``.
        value: Like ``key``.

    Returns:
        ``(rows, heads, queries, head_dim)``, float32.
    """
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(widened(query), widened(key), widened(value), enable_gqa=grouped)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Grouped-query attention in float32 with a fixed order of summation.

    Args:
        query: ``(batch, kv_heads, group * queries, head_dim)``; the queries of the heads that share a key head stand
            one head after the other.
        key: ``(batch, kv_heads, positions, head_dim)``.
        value: Like ``key``.
        mask: Added to the scores, broadcastable to ``(batch, kv_heads, group * queries, positions)``, float32.

    Returns:
        Like ``query``, in its dtype. Positions masked with minus infinity add exact zeros, so that a row's result does
        not depend on how far other rows reach, provided ``positions`` is a multiple of 64 or the same for all.
    """
    batch, heads, queries, size = query.shape
    length = key.shape[2]
    flat_query = query.reshape(batch * heads, queries, size).float()
    flat_key = key.reshape(batch * heads, length, size).float()
    flat_value = value.reshape(batch * heads, length, size).float()
    scores = torch.bmm(flat_query, flat_key.transpose(1, 2)).mul(1.0 / math.sqrt(size))
    if mask is not None:
        scores = (scores.view(batch, heads, queries, length) + mask).view(batch * heads, queries, length)
    weights = scores.softmax(dim=-1)
    out = torch.bmm(weights[:, :, :VALUE_BLOCK], flat_value[:, :VALUE_BLOCK])
    for start in range(VALUE_BLOCK, length, VALUE_BLOCK):
        block = slice(start, start + VALUE_BLOCK)
        out = torch.baddbmm(out, weights[:, :, block], flat_value[:, block])
    return out.view(batch, heads, queries, size).to(query.dtype)
