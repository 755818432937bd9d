"""The noise of one take: its own CPU generator, on every device, so that nothing else can move it."""

from __future__ import annotations

import torch
from torch import Tensor

DRAWN_AHEAD = 8
"""Patches drawn in one call where that gives the same numbers."""

BLOCK = 16
"""torch's normal generator works in blocks of this many numbers; a draw that is no multiple of it ends differently."""


class NoiseStream:
    """One ``(feat_dim, patch_size)`` draw of standard normal float32 a patch, as upstream draws it.

    Args:
        seed: In [0, 2^32).
        feat_dim: Numbers of a latent frame.
        patch_size: Frames of a patch.
    """

    def __init__(self, seed: int, *, feat_dim: int, patch_size: int) -> None:
        self._generator = torch.Generator(device="cpu").manual_seed(seed)
        self._shape = (feat_dim, patch_size)
        self._ahead = DRAWN_AHEAD if feat_dim * patch_size % BLOCK == 0 else 1
        self._drawn: list[Tensor] = []

    def next(self) -> Tensor:
        """The next patch's noise, ``(patch_size, feat_dim)``."""
        if not self._drawn:
            drawn = torch.randn((self._ahead, *self._shape), generator=self._generator)
            self._drawn = list(drawn.transpose(1, 2).flip(0))
        return self._drawn.pop()
