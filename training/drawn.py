"""Latents as the language model draws them, in time with the teacher's audio.

Drawn latents are smoother than true ones. A decoder that has only met true ones mumbles on them; trained on these, it
gives the consonants their edge back. The teacher's patches are fed back, so that what is drawn keeps the teacher's
timing and can be compared with its audio.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from training.files import read_state, write_arrays
from training.lexicon import load
from training.sequences import Corpus, Utterance, collate
from training.settings import DEFAULTS
from training.student import Watch, hidden_states, new_network
from voxr_ray.messages import Sampler
from voxr_ray.voxcpm2.network import VoxCPM2

ROWS = 16
TIMESTEPS = 6
"""Fewer than served: the last steps change little, and every one costs."""

HEARD_NOISE = 0.15


@torch.inference_mode()
def draw(network: VoxCPM2, corpus: Corpus, utterances: list[Utterance], sampler: Sampler) -> list[np.ndarray]:
    """Frames ``(frames, LATENT_DIM)`` of each utterance, drawn behind the teacher's own patches."""
    first = utterances[0].speaker == 0
    items = [corpus.item(utterance, len(utterance.patches), plain=first) for utterance in utterances]
    batch = collate(items)
    heard = batch.patches + HEARD_NOISE * torch.randn(batch.patches.shape)
    base, residual = hidden_states(network, batch, heard, Watch(batch))
    previous = heard[batch.previous.clamp_min(0)].masked_fill((batch.previous < 0)[:, None, None], 0.0)
    steps, guidance = sampler.inference_timesteps, sampler.cfg_value
    drawn = network.draw(torch.randn_like(previous), base, residual, previous, steps, guidance)
    # A continuation of the first speaker learns its prompt as well: only the end belongs to this utterance.
    ends = np.cumsum([len(item.targets) for item in items])
    pieces = zip(ends, utterances, strict=True)
    return [drawn[end - len(said.patches) : end].flatten(0, 1).numpy() for end, said in pieces]


def write_shard(source: Path, target: Path, network: VoxCPM2, corpus: Corpus, share: float) -> None:
    """Draw the first speaker's utterances of one shard of latents, and a share of the others'."""
    rng = random.Random(source.name)
    utterances = corpus.load_shard(source)
    chosen = [index for index, said in enumerate(utterances) if said.speaker == 0 or rng.random() < share]
    chosen.sort(key=lambda index: (utterances[index].speaker != 0, len(utterances[index].patches)))
    groups = [chosen[start : start + ROWS] for start in range(0, len(chosen), ROWS)]
    sampler = Sampler(float(DEFAULTS["cfg_value"]), TIMESTEPS)
    frames = [
        piece for group in groups for piece in draw(network, corpus, [utterances[index] for index in group], sampler)
    ]
    write_arrays(
        target,
        latents=np.concatenate(frames).astype(np.float16),
        frame_counts=np.array([len(piece) for piece in frames]),
        indices=np.array(chosen),
    )


def run(work: Path, shards: int, share: float) -> None:
    """Write ``drawn/NNNN.npz`` for the first ``shards`` shards.

    Raises:
        FileNotFoundError: The language model is not trained.
    """
    if (state := read_state(work / "lm.pt")) is None:
        raise FileNotFoundError(work / "lm.pt")
    network = new_network(0)
    network.load_state_dict(state["average"])
    network.eval()
    corpus = Corpus(work, load(work), 0)
    for source in tqdm(sorted((work / "latents").glob("*.npz"))[:shards], desc="drawn", unit="shard"):
        target = work / "drawn" / source.name
        if not target.exists():
            write_shard(source, target, network, corpus, share)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--share", type=float, default=0.3, help="of the utterances that are not the first speaker's")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run(given.work, given.shards, given.share)
