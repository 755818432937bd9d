"""Analytic latent frames: what a 40 ms block of speech sounds like, decorrelated.

A learned encoder would have to be trained before anything else could start. These frames are computed, so that decoder
and language model train at the same time, and the encoder is taught to hit them afterwards. A block is described by
four log-mel spectra, and by pitch and voicing twice, through windows that end with the block: the network's encoder is
causal and cannot hear more. Principal components, partly whitened, make them a target for flow matching.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

RATE_HZ = 16000
BLOCK = 640
"""Samples of one latent frame."""

HOP, WINDOW, TRANSFORM = 160, 400, 512
MELS = 40
LOWEST_HZ, HIGHEST_HZ = 50.0, 8000.0
FLOOR = 1e-5

PITCH_HOP, PITCH_WINDOW, PITCH_TRANSFORM = 320, 640, 1024
PITCH_RANGE_HZ = (60.0, 350.0)
VOICED = 0.5
"""Normalised autocorrelation from which a frame counts as voiced."""

PITCH_WEIGHT = 3.0
"""Pitch and voicing are 4 of 164 numbers; unweighted, the last components kept would not hold them."""

RAW = MELS * (BLOCK // HOP) + 2 * (BLOCK // PITCH_HOP)


def _mel(frequency: float) -> float:
    return 2595.0 * math.log10(1.0 + frequency / 700.0)


def mel_filters() -> Tensor:
    """Triangular filters ``(TRANSFORM / 2 + 1, MELS)``."""
    marks = np.linspace(_mel(LOWEST_HZ), _mel(HIGHEST_HZ), MELS + 2)
    edges = 700.0 * (10.0 ** (marks / 2595.0) - 1.0)
    bins = np.arange(TRANSFORM // 2 + 1) * RATE_HZ / TRANSFORM
    rising = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    filters = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    out: Tensor = torch.from_numpy(filters)
    return out


def _windows(samples: Tensor, hop: int, length: int) -> Tensor:
    """Windows ``(count, length)`` of which number k ends with sample ``hop * (k + 1)``."""
    return F.pad(samples, (length - hop, 0)).unfold(0, length, hop)


def log_mel(samples: Tensor) -> Tensor:
    """float32 ``(samples,)``, a multiple of :data:`HOP`, to ``(samples / HOP, MELS)``."""
    spectrum = torch.fft.rfft(_windows(samples, HOP, WINDOW) * torch.hann_window(WINDOW), n=TRANSFORM).abs()
    out: Tensor = (spectrum @ mel_filters()).clamp_min(FLOOR).log()
    return out


def pitch(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Fundamental frequency in Hz and normalised autocorrelation, one each :data:`PITCH_HOP`."""
    windows = _windows(samples, PITCH_HOP, PITCH_WINDOW)
    windows = windows - windows.mean(dim=1, keepdim=True)
    power = torch.fft.rfft(windows, n=PITCH_TRANSFORM).abs().square()
    correlation = torch.fft.irfft(power)[:, : PITCH_WINDOW // 2]
    # The overlap shrinks with the lag; without this, short lags always win.
    correlation = correlation / (1.0 - torch.arange(PITCH_WINDOW // 2) / PITCH_WINDOW)
    correlation = correlation / correlation[:, :1].clamp_min(1e-4)
    low, high = int(RATE_HZ / PITCH_RANGE_HZ[1]), int(RATE_HZ / PITCH_RANGE_HZ[0])
    inside = correlation[:, low : high + 1]
    best = inside.max(dim=1).values
    # The first lag that is nearly as good as the best: multiples of the period correlate as well.
    lag = (inside >= 0.9 * best[:, None]).float().argmax(dim=1)
    while True:  # climb from the edge of that peak to its top
        following = (lag + 1).clamp_max(inside.shape[1] - 1)
        higher = inside.gather(1, following[:, None])[:, 0] > inside.gather(1, lag[:, None])[:, 0]
        if not bool(higher.any()):
            break
        lag = torch.where(higher, following, lag)
    return RATE_HZ / (lag + low).float(), best


def raw_features(samples: Tensor) -> Tensor:
    """float32 ``(samples,)``, a multiple of :data:`BLOCK`, to ``(samples / BLOCK, RAW)``."""
    blocks = len(samples) // BLOCK
    frequency, correlation = pitch(samples)
    voiced = (correlation > VOICED).float()
    height = (frequency / 130.0).log() * 2.0 * voiced
    tone = torch.stack((height, voiced - 0.5), dim=1).view(blocks, -1) * PITCH_WEIGHT
    mel = (log_mel(samples).view(blocks, -1) + 6.0) / 2.5
    return torch.cat((mel, tone), dim=1)


@dataclass(frozen=True)
class Latents:
    """The projection from raw features to latent frames.

    Attributes:
        mean: ``(RAW,)``.
        forward_matrix: ``(RAW, latent_dim)``.
    """

    mean: Tensor
    forward_matrix: Tensor

    @classmethod
    def fit(cls, raw: Tensor, latent_dim: int) -> Self:
        """Principal components of ``(frames, RAW)``, each scaled to the fourth root of its variance, 1 on average."""
        mean = raw.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov((raw - mean).T))
        values, vectors = values[-latent_dim:].flip(0), vectors[:, -latent_dim:].flip(1)
        deviation = values.pow(0.25)
        scale = deviation / values.sqrt() / deviation.square().mean().sqrt()
        return cls(mean, vectors * scale)

    def __call__(self, raw: Tensor) -> Tensor:
        """``(frames, RAW)`` to ``(frames, latent_dim)``."""
        return (raw - self.mean) @ self.forward_matrix

    def save(self, path: Path) -> None:
        """Write to an ``.npz``."""
        np.savez(path, mean=self.mean.numpy(), forward_matrix=self.forward_matrix.numpy())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote."""
        with np.load(path) as stored:
            return cls(torch.from_numpy(stored["mean"]), torch.from_numpy(stored["forward_matrix"]))
