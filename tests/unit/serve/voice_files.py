"""Recordings for the tests of voices."""

from __future__ import annotations

import io

import numpy as np
import soundfile


def recording(seed: int = 0, *, seconds: float = 1.5, kind: str = "WAV", peak: float = 0.3) -> bytes:
    """A file of noise that only ``seed`` decides."""
    rate_hz = 16_000
    samples = np.random.default_rng(seed).uniform(-peak, peak, int(seconds * rate_hz))
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=kind, subtype=None if kind in ("OGG", "MP3") else "PCM_16")
    return file.getvalue()
