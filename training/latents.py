"""Latent frames and phone labels of every teacher shard; the projection is fitted on the first shards."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from training.features import BLOCK, RATE_HZ, Latents, raw_features
from training.files import read_json, write_arrays
from training.settings import LATENT_DIM, PATCH_SIZE
from training.teacher import SHARD

FIT_SHARDS = 2
LEAST_PATCHES = 4
"""No take is shorter (with the default ``min_len`` of 2), so shorter words are trained with silence behind them."""

POLL_S = 5.0


def padded(samples: np.ndarray) -> torch.Tensor:
    """int16 samples as float32, with silence up to whole patches."""
    patch = BLOCK * PATCH_SIZE
    count = max(-(-len(samples) // patch), LEAST_PATCHES) * patch
    out = torch.zeros(count)
    out[: len(samples)] = torch.from_numpy(samples.astype(np.float32) / 32768.0)
    return out


def split(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Cut concatenated values into pieces of the given lengths."""
    return np.split(values, np.cumsum(counts)[:-1])


def frame_labels(phones: np.ndarray, ends_s: np.ndarray, frames: int) -> np.ndarray:
    """The phone in the middle of each frame; 0, the pause, behind the last one."""
    middles = (np.arange(frames) + 0.5) * BLOCK / RATE_HZ
    return np.append(phones, 0)[np.searchsorted(ends_s, middles, side="right")].astype(np.int8)


def shard_features(path: Path) -> list[torch.Tensor]:
    """Raw features of each utterance of a teacher shard."""
    with np.load(path) as shard:
        pieces = split(shard["samples"], shard["sample_counts"])
    return [raw_features(padded(piece)) for piece in pieces]


def write_shard(source: Path, target: Path, latents: Latents) -> None:
    """Latents and labels of one shard."""
    raw = shard_features(source)
    with np.load(source) as shard:
        labels = [
            frame_labels(phones, ends, len(frames))
            for phones, ends, frames in zip(
                split(shard["phones"], shard["phone_counts"]),
                split(shard["ends_s"], shard["phone_counts"]),
                raw,
                strict=True,
            )
        ]
        texts, speakers = shard["texts"], shard["speakers"]
    write_arrays(
        target,
        latents=latents(torch.cat(raw)).numpy().astype(np.float16),
        labels=np.concatenate(labels),
        frame_counts=np.array([len(frames) for frames in raw]),
        texts=texts,
        speakers=speakers,
    )


def _ready(path: Path) -> Path:
    """Wait for a shard that the teacher is still writing."""
    while not path.exists():
        time.sleep(POLL_S)
    return path


def run(work: Path) -> None:
    """Write ``latents/NNNN.npz`` for every shard of the corpus, waiting for shards not there yet."""
    shards = -(-len(read_json(work / "corpus.json")) // SHARD)
    projection = work / "latents.npz"
    if not projection.exists():
        first = [_ready(work / "teacher" / f"{index:04d}.npz") for index in range(min(FIT_SHARDS, shards))]
        raw = torch.cat([features for path in first for features in shard_features(path)])
        Latents.fit(raw, LATENT_DIM).save(projection)
    latents = Latents.load(projection)
    for index in tqdm(range(shards), desc="latents", unit="shard"):
        target = work / "latents" / f"{index:04d}.npz"
        if not target.exists():
            write_shard(_ready(work / "teacher" / target.name), target, latents)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    torch.set_num_threads(1)
    run(parser.parse_args().work)
