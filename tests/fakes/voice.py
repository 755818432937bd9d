"""A fake model whose answers sound like a voice: codecs are made for that, and not for noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fakes.slot_model import FakeSlotModel
from tests.playback import speech_like

SECONDS = 2.0


class FakeVoice(FakeSlotModel):
    """Every answer is the beginning of one and the same utterance, at most ``SECONDS`` of it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._voice = speech_like(SECONDS, self.spec.sample_rate_hz)

    def decode(self, slots: Sequence[int]) -> list[np.ndarray]:
        size = self.spec.samples_per_patch
        before = [self._lanes[slot].decoded * size for slot in slots]
        made = super().decode(slots)
        return [self._voice[start : start + len(samples)] for start, samples in zip(before, made, strict=True)]


def make_fake_voice(settings: Any) -> FakeVoice:
    """Build the model, in a replica."""
    return FakeVoice()
