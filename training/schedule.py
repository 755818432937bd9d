"""Learning rate and weight averaging that all trained parts share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def learning_rate(progress: float, highest: float, *, warm_up: float) -> float:
    """Linear rise over the first ``warm_up`` of the training, then half a cosine down to 2 %."""
    if progress < warm_up:
        return highest * (0.02 + progress / warm_up * 0.98)
    left = (progress - warm_up) / (1.0 - warm_up)
    return highest * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, left))))


class Average:
    """Exponential moving average of a module's weights, young while the training is."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Take in the weights after ``step``."""
        decay = min(self.decay, (1 + step) / (10 + step))
        now: dict[str, Tensor] = module.state_dict()
        for name, average in self.weights.items():
            average.lerp_(now[name], 1.0 - decay)
