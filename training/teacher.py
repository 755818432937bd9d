"""Teacher speech: flite (CMU, BSD-style licence) says the corpus; shards of samples and phone times.

A shard holds :data:`SHARD` utterances. Those that are there are skipped, so that the stage can be stopped and
resumed, and later stages can work on the shards that are ready.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tqdm import tqdm

from training import phones
from training.corpus import SPEAKERS
from training.files import read_json, write_arrays
from training.flite import RATE_HZ, flite

SHARD = 500
LEAD_S = 0.06
TAIL_S = 0.12
"""Silence kept before the first and behind the last phone, the same for all speakers."""


def say(text: str, speaker: str) -> tuple[np.ndarray, list[tuple[str, float]]]:
    """Speak one text.

    Returns:
        int16 samples from :data:`LEAD_S` before the first phone to :data:`TAIL_S` behind the last, and the phones with
        their end times in seconds, pauses inside included.
    """
    samples, times = flite().say(text, speaker)
    return trim(samples, times)


def trim(samples: np.ndarray, times: list[tuple[str, float]]) -> tuple[np.ndarray, list[tuple[str, float]]]:
    """Cut the silence around the speech to a fixed length."""
    spoken = [index for index, (phone, _) in enumerate(times) if phone != phones.PAUSE]
    if not spoken:
        raise ValueError("nothing was said")
    first, last = spoken[0], spoken[-1]
    start = max(0.0, (times[first - 1][1] if first else 0.0) - LEAD_S)
    end = times[last][1] + TAIL_S
    cut = samples[int(start * RATE_HZ) : int(end * RATE_HZ)]
    inside = [(phone, time - start) for phone, time in times[first : last + 1]]
    return cut, [(phones.PAUSE, (times[first - 1][1] if first else 0.0) - start), *inside]


def write_shard(path: Path, utterances: list[dict[str, str]]) -> None:
    """Speak the utterances of one shard."""
    said = [say(utterance["text"], utterance["speaker"]) for utterance in utterances]
    speakers = list(SPEAKERS)
    write_arrays(
        path,
        samples=np.concatenate([samples for samples, _ in said]),
        sample_counts=np.array([len(samples) for samples, _ in said]),
        phones=np.array([phones.INDEX[phone] for _, times in said for phone, _ in times], dtype=np.int8),
        ends_s=np.array([end for _, times in said for _, end in times], dtype=np.float32),
        phone_counts=np.array([len(times) for _, times in said]),
        texts=np.array([utterance["text"] for utterance in utterances]),
        speakers=np.array([speakers.index(utterance["speaker"]) for utterance in utterances], dtype=np.int8),
    )


def run(work: Path, part: int = 0, parts: int = 1) -> None:
    """Write ``teacher/NNNN.npz`` for the whole corpus, or for each ``parts``-th shard beginning with ``part``."""
    corpus = read_json(work / "corpus.json")
    shards = range(part, -(-len(corpus) // SHARD), parts)
    for index in tqdm(shards, desc="teacher", unit="shard"):
        path = work / "teacher" / f"{index:04d}.npz"
        if not path.exists():
            write_shard(path, corpus[index * SHARD : (index + 1) * SHARD])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--part", type=int, default=0, help="which of several processes this is")
    parser.add_argument("--parts", type=int, default=1, help="processes that share the work")
    arguments = parser.parse_args()
    run(arguments.work, arguments.part, arguments.parts)
