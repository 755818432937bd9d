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
        self._schedules: dict[int, list[tuple[Tensor, Tokens]]] = {}
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
        schedule = self._schedule(inference_timesteps)
        # Guided and unguided rows share one pass; the unguided half has no mu but the same previous patch.
        both_mu = self.estimator.tokens(torch.cat((mu, torch.zeros_like(mu))))
        condition = self.estimator.tokens(self.estimator.cond_proj(previous.to(mu.dtype)))
        both_condition = (torch.cat((each, each)) for each in condition)
        kept = (*both_mu, *both_condition)
        if not isinstance(guidance, Tensor):
            guidance = torch.full((), guidance, device=noise.device)
        sample = noise
        for delta, time in schedule:
            (sample,) = self._move(sample, *kept, *time, delta, guidance)
        return sample

    def move(
        self,
        sample: Tensor,
        mu: Tensor,
        mu_projected: Tensor,
        condition: Tensor,
        condition_projected: Tensor,
        time: Tensor,
        time_projected: Tensor,
        delta: Tensor,
        guidance: Tensor,
    ) -> tuple[Tensor]:
        """One Euler step of guided rows. What is projected is that by the estimator's first block.

        Args:
            sample: float32 ``(rows, patch_size, feat_dim)``.
            mu: ``(2 * rows, 2, hidden)``, zero in the unguided half.
            mu_projected: Of ``mu``.
            condition: The previous patch after ``cond_proj``, ``(2 * rows, patch_size, hidden)``.
            condition_projected: Of ``condition``.
            time: The step's time token ``(1, 1, hidden)``.
            time_projected: Of ``time``.
            delta: float32 scalar, how far to move.
            guidance: float32 scalar.

        Returns:
            The sample behind the step, alone in a tuple.
        """
        velocity = self.estimator(
            sample.to(mu.dtype),
            Tokens(mu, mu_projected),
            Tokens(time, time_projected),
            Tokens(condition, condition_projected),
        ).float()
        both = velocity.reshape(2, sample.shape[0], -1)
        guided, unguided = both.unbind(0)
        # Products of both halves with the unguided one: their overlap, and its own square.
        overlap, square = (both * unguided).sum(dim=2, keepdim=True).unbind(0)
        base = unguided * (overlap / (square + 1e-8))
        mixed = base + (guided - base) * guidance
        return (sample - mixed.view_as(sample) * delta,)

    def _schedule(self, inference_timesteps: int) -> list[tuple[Tensor, Tokens]]:
        """Length ``()`` and time token ``(1, 1, …)`` of each step, made once per number of steps."""
        if inference_timesteps not in self._schedules:
            steps = euler_steps(inference_timesteps)
            device = self.estimator.device
            times = torch.tensor([step.time for step in steps], dtype=torch.float32, device=device)
            lengths = torch.tensor([step.delta for step in steps], dtype=torch.float32, device=device)
            deltas = lengths if self.mean_mode else torch.zeros_like(lengths)
            tokens = self.estimator.tokens(self.estimator.time_tokens(times, deltas))
            each = (Tokens(*(part.view(1, 1, -1) for part in token)) for token in zip(*tokens, strict=True))
            self._schedules[inference_timesteps] = list(zip(lengths, each, strict=True))
        return self._schedules[inference_timesteps]
