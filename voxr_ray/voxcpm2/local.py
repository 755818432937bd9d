"""The local networks that work inside one patch: LocEnc, which embeds it, and LocDiT, which estimates its velocity."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from voxr_ray.voxcpm2.config import LMConfig
from voxr_ray.voxcpm2.ops import Linear, silu
from voxr_ray.voxcpm2.stack import Stack


class LocEnc(nn.Module):
    """Embeds a patch: a learned token in front of its frames, and that token's output.

    Source: OpenBMB/VoxCPM, ``VoxCPMLocEnc``.
    """

    def __init__(self, config: LMConfig, *, feat_dim: int, patch_size: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.empty(1, 1, 1, config.hidden_size))
        self.in_proj = Linear(feat_dim, config.hidden_size)
        self.encoder = Stack(config, 1 + patch_size)

    def forward(self, patches: Tensor) -> Tensor:
        """``(rows, patch_size, feat_dim)`` to ``(rows, hidden)``."""
        frames = self.in_proj(patches)
        token = self.special_token.view(1, 1, -1).expand(frames.shape[0], 1, -1)
        out: Tensor = self.encoder.local(torch.cat((token, frames), dim=1), slice(0, 1))
        return out[:, 0]


class TimeMLP(nn.Module):
    """Two linear layers with SiLU between.

    Source: OpenBMB/VoxCPM, ``TimestepEmbedding``.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear_1 = Linear(size, size)
        self.linear_2 = Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """``(rows, size)`` to ``(rows, size)``."""
        out: Tensor = self.linear_2(silu(self.linear_1(x)))
        return out


def time_embedding(times: Tensor, size: int) -> Tensor:
    """Sines, then cosines, of ``1000 * t`` at ``size / 2`` frequencies; float32 ``(times, size)``.

    Source: OpenBMB/VoxCPM, ``SinusoidalPosEmb``.
    """
    half = size // 2
    exponent = torch.arange(half, dtype=torch.float32, device=times.device) * -(math.log(10000) / (half - 1))
    angles = 1000 * times.float()[:, None] * exponent.exp()[None, :]
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


class Tokens(NamedTuple):
    """Tokens as they enter a stack, and what its first block projects of them.

    Attributes:
        hidden: ``(..., hidden)``.
        projected: ``(..., (heads + 2 * kv_heads) * head_dim)``, see :meth:`Layer.project`.
    """

    hidden: Tensor
    projected: Tensor


class LocDiT(nn.Module):
    """Velocity of a noisy patch, given two conditioning tokens, the time and the previous patch.

    Its sequence is: the two ``mu`` tokens, the time token, the previous patch's frames, the noisy patch's frames; the
    velocity is read from the last of them.

    Source: OpenBMB/VoxCPM, ``VoxCPMLocDiTV2``.
    """

    def __init__(self, config: LMConfig, *, feat_dim: int, patch_size: int) -> None:
        super().__init__()
        self.hidden = config.hidden_size
        self.patch_size = patch_size
        self.in_proj = Linear(feat_dim, config.hidden_size)
        self.cond_proj = Linear(feat_dim, config.hidden_size)
        self.out_proj = Linear(config.hidden_size, feat_dim)
        self.time_mlp = TimeMLP(config.hidden_size)
        self.delta_time_mlp = TimeMLP(config.hidden_size)
        self.decoder = Stack(config, 3 + 2 * patch_size)

    def time_tokens(self, times: Tensor, deltas: Tensor) -> Tensor:
        """Tokens ``(times, hidden)`` for float32 ``times`` and ``deltas`` ``(times,)``."""
        dtype = self.compute_dtype
        by_time = self.time_mlp(time_embedding(times, self.hidden).to(dtype))
        by_delta = self.delta_time_mlp(time_embedding(deltas, self.hidden).to(dtype))
        token: Tensor = by_time + by_delta
        return token

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype this network computes in."""
        return self.decoder.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.decoder.norm.weight.device

    def tokens(self, hidden: Tensor) -> Tokens:
        """Tokens ``(..., hidden)`` with their projections."""
        return Tokens(hidden, self.decoder.blocks()[0].project(hidden))

    def forward(self, noisy: Tensor, mu: Tokens, time: Tokens, condition: Tokens) -> Tensor:
        """Estimate the velocity.

        Only the noisy patch changes between Euler steps, so the first block's projections of all else are given.

        Args:
            noisy: ``(rows, patch_size, feat_dim)``, where a row has as many lines of ``mu`` as that is longer: the
                guided and the unguided estimate start from the same sample.
            mu: ``(rows, 2, …)``.
            time: The time token ``(1, 1, …)``, the same for all rows.
            condition: The previous patch after ``cond_proj``, ``(rows, patch_size, …)``.

        Returns:
            ``(rows, patch_size, feat_dim)``.
        """
        frames = self.tokens(self.in_proj(noisy))
        sequence = _sequence(mu.hidden, time.hidden, condition.hidden, frames.hidden)
        projected = _sequence(mu.projected, time.projected, condition.projected, frames.projected)
        hidden = self.decoder.local(sequence, slice(sequence.shape[1] - self.patch_size, None), projected)
        velocity: Tensor = self.out_proj(hidden)
        return velocity


def _sequence(mu: Tensor, time: Tensor, condition: Tensor, frames: Tensor) -> Tensor:
    """Tokens or projections in the order of :class:`LocDiT`; frames are repeated where ``mu`` has more rows."""
    rows = mu.shape[0]
    repeated = torch.cat([frames] * (rows // frames.shape[0]))
    return torch.cat((mu, time.expand(rows, -1, -1), condition, repeated), dim=1)
