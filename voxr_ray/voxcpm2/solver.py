"""The flow-matching solver: Euler steps with classifier-free guidance (CFG-zero-star) over LocDiT.

Source: OpenBMB/VoxCPM, ``UnifiedCFM``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voxr_ray.voxcpm2.local import LocDiT, Tokens
from voxr_ray.voxcpm2.tape import Function, Recorded


@dataclass(frozen=True, slots=True)
class EulerStep:
    """One evaluation of the estimator: at ``time``, moving by ``-delta``."""

    time: float
    delta: float


def euler_steps(inference_timesteps: int) -> list[EulerStep]:
    """The steps that evaluate the estimator, in order.

    Times run from 1 to 0 through ``linspace(1, 0, n + 1)`` swayed by ``cos(pi t / 2) - 1 + t``. The first
    ``max(1, int(0.04 (n + 1)))`` steps have zero velocity: they leave the sample where it is and only move the time,
    so they are not returned. The sums are upstream's own, in float32, since a rounded time is a different time.

    Args:
        inference_timesteps: ``n``. With ``n = 1`` nothing is left and the sample stays noise.
    """
    span = torch.linspace(1, 0, inference_timesteps + 1, dtype=torch.float32, device="cpu")
    span = span + (torch.cos(torch.pi / 2 * span) - 1 + span)
    still = max(1, int(len(span) * 0.04))
    steps: list[EulerStep] = []
    time, delta = span[0], span[0] - span[1]
    for index in range(1, len(span)):
        if index > still:
            steps.append(EulerStep(float(time), float(delta)))
        time = time - delta
        if index < len(span) - 1:
            delta = time - span[index + 1]
    return steps


class Solver(nn.Module):
    """Draws patches with a LocDiT.

    Args:
        estimator: The velocity network.
        mean_mode: Whether the network also reads the step's length (``dit_mean_mode``).
    """

    def __init__(self, estimator: LocDiT, *, mean_mode: bool) -> None:
        super().__init__()
        self.estimator = estimator
        self.mean_mode = mean_mode
        self._schedules: dict[int, tuple[Tensor, Tokens]] = {}
        self._move: Function = self.move

    def record(self) -> None:
        """Record Euler steps from here on, once for each number of rows."""
        self._move = Recorded(self.move)

    def forward(
        self, noise: Tensor, mu: Tensor, previous: Tensor, inference_timesteps: int, guidance: float | Tensor
    ) -> Tensor:
        """Carry noise to a patch.

        Args:
            noise: float32 ``(rows, patch_size, feat_dim)``.
            mu: Conditioning tokens ``(rows, 2, hidden)`` in the network's dtype.
            previous: float32 ``(rows, patch_size, feat_dim)``, the patch before.
            inference_timesteps: Number of Euler steps.
            guidance: ``cfg_value``; a float32 scalar on the network's device where steps are captured, so that one
                captured step serves every guidance.

        Returns:
            float32 ``(rows, patch_size, feat_dim)``. The sample and the guidance stay in float32 in every dtype of
            the network.
        """
        deltas, times = self._schedule(inference_timesteps)
        condition = self.estimator.cond_proj(previous.to(mu.dtype))
        # Guided and unguided rows share one pass; the unguided half has no mu but the same previous patch.
        both_mu = torch.cat((mu, torch.zeros_like(mu)))
        known = self.estimator.tokens(torch.cat((both_mu, condition.repeat(2, 1, 1)), dim=1))
        if not isinstance(guidance, Tensor):
            guidance = torch.full((), guidance, device=noise.device)
        sample = noise
        for delta, hidden, projected in zip(deltas, *times, strict=True):
            (sample,) = self._move(sample, *known, hidden, projected, delta, guidance)
        return sample

    def move(
        self,
        sample: Tensor,
        known: Tensor,
        known_projected: Tensor,
        time: Tensor,
        time_projected: Tensor,
        delta: Tensor,
        guidance: Tensor,
    ) -> tuple[Tensor]:
        """One Euler step of guided rows.

        Args:
            sample: float32 ``(rows, patch_size, feat_dim)``.
            known: See :meth:`LocDiT.forward`, ``(2 * rows, 2 + patch_size, hidden)``; ``mu`` is zero in the unguided
                half.
            known_projected: What the first block projects of them.
            time: The step's time token ``(hidden,)``.
            time_projected: What the first block projects of it.
            delta: float32 scalar, how far to move.
            guidance: float32 scalar.

        Returns:
            The sample behind the step, alone in a tuple.
        """
        tokens = Tokens(known, known_projected), Tokens(time, time_projected)
        velocity = self.estimator(sample.to(known.dtype), *tokens).float()
        both = velocity.reshape(2, sample.shape[0], -1)
        guided, unguided = both.unbind(0)
        # Products of both halves with the unguided one: their overlap, and its own square.
        overlap, square = (both * unguided).sum(dim=2, keepdim=True).unbind(0)
        base = unguided * (overlap / (square + 1e-8))
        mixed = base + (guided - base) * guidance
        return (sample - mixed.view_as(sample) * delta,)

    def _schedule(self, inference_timesteps: int) -> tuple[Tensor, Tokens]:
        """Lengths ``(steps,)`` and time tokens ``(steps, …)`` of all steps, made once per number of steps."""
        if inference_timesteps not in self._schedules:
            steps = euler_steps(inference_timesteps)
            device = self.estimator.device
            times = torch.tensor([step.time for step in steps], dtype=torch.float32, device=device)
            lengths = torch.tensor([step.delta for step in steps], dtype=torch.float32, device=device)
            deltas = lengths if self.mean_mode else torch.zeros_like(lengths)
            tokens = self.estimator.tokens(self.estimator.time_tokens(times, deltas))
            self._schedules[inference_timesteps] = lengths, tokens
        return self._schedules[inference_timesteps]
