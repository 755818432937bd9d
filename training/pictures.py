"""Spectrograms of teacher and model side by side, for the documentation."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

from training.corpus import SPEAKERS
from training.evaluate import Voice, teacher_audio
from training.features import HOP, RATE_HZ, log_mel

TEXTS = ("seven small boats", "the call is from number three six seven", "my brother lives in front of the house")


def spectrogram(samples: np.ndarray) -> np.ndarray:
    """Log-mel spectrogram ``(MELS, frames)`` of float32 samples."""
    whole = samples[: len(samples) // HOP * HOP]
    return log_mel(torch.from_numpy(np.ascontiguousarray(whole))).numpy().T


def draw(pairs: list[tuple[str, np.ndarray, np.ndarray]], path: Path) -> None:
    """One row a text: the teacher's audio, the model's."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(pairs), 2, figsize=(11, 2.3 * len(pairs)), squeeze=False, sharex="row", sharey=True)
    for row, (text, teacher, model) in zip(axes, pairs, strict=True):
        for axis, name, samples in zip(row, ("teacher", "model"), (teacher, model), strict=True):
            picture = spectrogram(samples)
            extent = (0.0, picture.shape[1] * HOP / RATE_HZ, 0, len(picture))
            axis.imshow(picture, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=-9, vmax=1)
            axis.set_title(f"{name}: {text}", fontsize=9)
            axis.set_yticks([])
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    takes = Voice(given.folder, None).render([{"text": text, "seed": 1} for text in TEXTS])
    first = next(iter(SPEAKERS))
    draw([(text, teacher_audio(text, first), take.samples) for text, take in zip(TEXTS, takes, strict=True)], given.out)
