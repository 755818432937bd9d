"""Training of everything but the AudioVAE.

It starts on the shards that are there and takes in more as they come, short sequences first: with those the network
finds out that speech follows text, which the longer ones then only stretch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from training.files import read_state, write_state
from training.lexicon import load
from training.peers import Peers
from training.schedule import Average, learning_rate
from training.sequences import Corpus
from training.settings import LATENT_DIM, PATCH_SIZE
from training.student import Helpers, losses, new_network

WEIGHTS = {"flow": 1.0, "stop": 0.2, "phone": 0.3, "sound": 1.0, "place": 0.15}
SAVE_EVERY = 50
EXCHANGE_EVERY = 25
CURRICULUM = 0.4
"""Share of the training in which the longest sequence grows from :data:`SHORTEST` to :data:`LONGEST` patches."""

SHORTEST, LONGEST = 6, 40
DRAWN, DRAWN_LATE = 64, 160
"""Patches of a batch on which flow matching is computed, early and late: hidden states must be good first."""

OWN_LATE = 0.5
"""Share of late batches in which the network hears its own patches; early ones would teach it only its errors."""

LATE = 0.65
"""Share of the training from which it is late."""

WARM_UP_STEPS = 50
"""Steps in which the rate rises after every start: one without optimizer state would shake off what was learned."""


def train(
    work: Path,
    *,
    steps: int,
    positions: int,
    rate: float,
    seed: int,
    until: float | None,
    half: bool = False,
    begin: float | None = None,
    rank: int = 0,
    processes: int = 1,
) -> None:
    """Train, going on from the checkpoint ``lm.pt``.

    Args:
        work: Folder of everything that training writes.
        steps: Steps in all.
        positions: Positions of a batch, with padding.
        rate: Highest learning rate.
        seed: Of weights and data.
        until: Unix time at which the schedule must have come to its end, whatever ``steps`` says.
        begin: Share of the schedule to begin at, instead of where the checkpoint stopped.
        rank: Number of this process; the first one saves.
        processes: Processes that share the training, see :mod:`training.peers`.
        half: Whether matrix products run in bfloat16: faster where the processor multiplies matrices of it (AMX).
    """
    path = work / "lm.pt"
    network = new_network(seed)
    helpers = Helpers(network.config.lm_config.hidden_size, PATCH_SIZE, LATENT_DIM)
    parameters = [*network.parameters(), *helpers.parameters()]
    decayed = [tensor for tensor in parameters if tensor.dim() > 1]
    plain = [tensor for tensor in parameters if tensor.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=rate, betas=(0.9, 0.98)
    )
    average = Average(network, 0.99)
    done, progress = 0, 0.0
    if (state := read_state(path)) is not None:
        network.load_state_dict(state["weights"])
        helpers.load_state_dict(state["helpers"])
        if "optimizer" in state:
            optimizer.load_state_dict(state["optimizer"])
        average.weights = state["average"]
        done, progress = state["done"], state["progress"]
    generator = torch.Generator().manual_seed(seed + done + 1_000_003 * rank)
    corpus = Corpus(work, load(work), seed + done + 1_000_003 * rank)
    peers, everything = Peers(work / "peers", rank, processes), nn.ModuleList([network, helpers])
    started, shown = time.time(), dict.fromkeys(WEIGHTS, 0.0)
    if begin is not None:
        progress = begin
    elif until is None:
        progress = done / steps
    begun, first = progress, done
    with tqdm(total=100.0, initial=100 * progress, desc="lm", unit="%", bar_format="{l_bar}{bar}{postfix}") as bar:
        while progress < 1.0:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(progress, rate, warm_up=0.03) * min(1.0, (done - first + 1) / WARM_UP_STEPS)
            late = progress >= LATE
            longest = round(SHORTEST + (LONGEST - SHORTEST) * min(1.0, progress / CURRICULUM))
            batch = corpus.batch(positions, longest)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                parts = losses(
                    network,
                    helpers,
                    batch,
                    generator,
                    drawn=DRAWN_LATE if late else DRAWN,
                    own=OWN_LATE if late else 0.0,
                )
            loss = torch.stack([WEIGHTS[name] * part for name, part in parts.items()]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            done += 1
            average.update(network, done)
            keep = 0.98 if done - first > 20 else 0.7
            shown = {name: keep * shown[name] + (1 - keep) * part.item() for name, part in parts.items()}
            if until is None:
                progress = done / steps if begin is None else begun + (1.0 - begun) * (done - first) / steps
            else:
                progress = begun + (1.0 - begun) * (time.time() - started) / max(1e-9, until - started)
            said = " ".join(f"{name} {value:.3f}" for name, value in shown.items())
            bar.set_postfix_str(
                f"step {done} {said} of {len(corpus.utterances)}, {(time.time() - started) / 60:.1f} min"
            )
            bar.update(100 * min(1.0, progress) - bar.n)
            if done % EXCHANGE_EVERY == 0:
                peers.exchange(everything)
            if rank == 0 and (done % SAVE_EVERY == 0 or progress >= 1.0):
                corpus.refresh()
                saved = {"weights": network.state_dict(), "average": average.weights, "done": done}
                saved |= {"helpers": helpers.state_dict(), "optimizer": optimizer.state_dict(), "progress": progress}
                write_state(path, saved)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--positions", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="end by then, with the schedule shortened to fit")
    parser.add_argument("--begin", type=float, help="go on, with --steps more, from this share of the schedule")
    parser.add_argument("--rank", type=int, default=0, help="number of this process among --processes")
    parser.add_argument("--processes", type=int, default=1, help="processes started to share the training")
    parser.add_argument("--bfloat16", action="store_true", help="matrix products in bfloat16, for processors with AMX")
    given = parser.parse_args()
    torch.set_num_threads(1)
    limit = None if given.minutes is None else time.time() + 60 * given.minutes
    train(
        given.work,
        steps=given.steps,
        positions=given.positions,
        rate=given.rate,
        seed=given.seed,
        until=limit,
        half=given.bfloat16,
        begin=given.begin,
        rank=given.rank,
        processes=given.processes,
    )
