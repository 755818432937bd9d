"""A small speaker classifier: statistics of cepstra and pitch under one Gaussian a speaker with a shared covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch

from training.corpus import SPEAKERS
from training.features import HOP, MELS, VOICED, log_mel, pitch
from training.latents import split

COEFFICIENTS = 16
SHARDS = 2
LEAST_SAMPLES = 16000
"""Shorter clips say too little of a voice to learn from."""


def statistics(samples: np.ndarray) -> np.ndarray:
    """Mean and deviation of the cepstra of what is not silence, and the median pitch."""
    audio = torch.from_numpy(samples.astype(np.float32))
    audio = audio[: len(audio) // (2 * HOP) * (2 * HOP)]
    mel = log_mel(audio)
    loud = mel.mean(dim=1)
    mel = mel[loud > loud.max() - 4.0]
    order = torch.arange(1, COEFFICIENTS)[:, None] * (torch.arange(MELS) + 0.5) * math.pi / MELS
    cepstra = mel @ order.cos().T / MELS
    frequency, correlation = pitch(audio)
    voiced = frequency[correlation > VOICED]
    height = voiced.log().median() if len(voiced) else torch.tensor(0.0)
    return torch.cat((cepstra.mean(dim=0), cepstra.std(dim=0), height.view(1))).numpy()


@dataclass(frozen=True)
class Classifier:
    """Nearest mean under the shared covariance."""

    names: list[str]
    means: np.ndarray
    precision: np.ndarray

    @classmethod
    def from_teacher(cls, work: Path) -> Self:
        """Fit on teacher speech of at least a second."""
        found: list[np.ndarray] = []
        labels: list[int] = []
        for path in sorted((work / "teacher").glob("*.npz"))[:SHARDS]:
            with np.load(path) as shard:
                for samples, speaker in zip(
                    split(shard["samples"], shard["sample_counts"]), shard["speakers"], strict=True
                ):
                    if len(samples) >= LEAST_SAMPLES:
                        found.append(statistics(samples / 32768.0))
                        labels.append(int(speaker))
        features, names = np.stack(found), list(SPEAKERS)
        means = np.stack([features[np.array(labels) == index].mean(axis=0) for index in range(len(names))])
        covariance = np.cov((features - means[labels]).T) + 1e-4 * np.eye(features.shape[1])
        return cls(names, means, np.linalg.inv(covariance))

    def __call__(self, samples: np.ndarray) -> str:
        """The speaker of float32 samples at 16 kHz."""
        away = statistics(samples) - self.means
        distance = np.einsum("sf,fg,sg->s", away, self.precision, away)
        return self.names[int(distance.argmin())]
