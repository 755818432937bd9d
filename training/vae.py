"""AudioVAE: the decoder learns to turn analytic latents into the teacher's audio, then the encoder to find them.

Training works on the served modules, with convolution weights already folded; :mod:`training.export` splits them into
norm and direction again. Both halves are saved by themselves, so that either can go on from where it stopped.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from training.features import BLOCK
from training.files import read_state, write_state
from training.latents import padded, split
from training.schedule import Average, learning_rate
from training.settings import CONFIG
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.ops import Linear
from voxr_ray.voxcpm2.vae import AudioVAE, Causal, DepthwiseConv, ResidualUnit, Upsample

Run: TypeAlias = Callable[[Tensor], Tensor]

CONTEXT, LENGTH = 4, 16
"""Frames of a training segment: those that only warm the decoder's state, and those that are judged."""

TRANSFORMS = (2048, 1024, 512, 256, 128)
SAVE_EVERY = 100
SHARDS_HELD = 12
RENEW_EVERY = 15
"""Steps between two exchanges of one of the shards in memory."""


def new_vae(seed: int) -> AudioVAE:
    """A network with fan-in initialisation."""
    torch.manual_seed(seed)
    vae = AudioVAE(ModelConfig.model_validate(CONFIG).audio_vae_config)
    for module in vae.modules():
        if isinstance(module, Linear):
            nn.init.normal_(module.weight, std=0.6 / math.sqrt(module.inputs))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, DepthwiseConv):
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.kernel))
            nn.init.zeros_(module.bias)
        elif isinstance(module, ResidualUnit):
            # Every unit adds; small branches at first keep the sum from growing with depth.
            nn.init.normal_(module.pointwise.linear.weight, std=0.2 / math.sqrt(module.channels))
    return vae


class Segments:
    """Random pieces of teacher audio with their latents, from those shards that are ready."""

    def __init__(self, work: Path, seed: int, source: str = "latents") -> None:
        self.work, self.source = work, source
        self.random = random.Random(seed)
        self.held: list[list[tuple[np.ndarray, np.ndarray]]] = []
        self.taken = 0

    def _load(self) -> list[tuple[np.ndarray, np.ndarray]]:
        name = self.random.choice(sorted((self.work / self.source).glob("*.npz"))).name
        with np.load(self.work / "teacher" / name) as teacher, np.load(self.work / self.source / name) as shard:
            samples = split(teacher["samples"], teacher["sample_counts"])
            if "indices" in shard:
                samples = [samples[index] for index in shard["indices"]]
            return list(zip(samples, split(shard["latents"], shard["frame_counts"]), strict=True))

    def batch(self, rows: int, frames: int) -> tuple[Tensor, Tensor]:
        """Audio ``(rows, frames * BLOCK)`` and latents ``(rows, frames, latent_dim)``."""
        if self.taken % RENEW_EVERY == 0:
            self.held = [*self.held[-(SHARDS_HELD - 1) :], self._load()]
        self.taken += 1
        audio: list[Tensor] = []
        latents: list[Tensor] = []
        while len(audio) < rows:
            samples, found = self.random.choice(self.random.choice(self.held))
            if len(found) < frames:
                continue
            start = self.random.randint(0, len(found) - frames)
            audio.append(padded(samples)[start * BLOCK : (start + frames) * BLOCK])
            latents.append(torch.from_numpy(found[start : start + frames].astype(np.float32)))
        return torch.stack(audio), torch.stack(latents)


def spectral_loss(made: Tensor, true: Tensor) -> Tensor:
    """Distance of magnitudes, logarithmic and linear, at several resolutions; ``(rows, samples)`` each."""
    loss = made.new_zeros(())
    for size in TRANSFORMS:
        window = torch.hann_window(size)

        def magnitude(audio: Tensor, size: int = size, window: Tensor = window) -> Tensor:
            spectrum = torch.stft(audio, size, size // 4, window=window, return_complex=True)
            return torch.sqrt(spectrum.real.square() + spectrum.imag.square() + 1e-8)

        ours, theirs = magnitude(made), magnitude(true)
        loss = loss + F.l1_loss((ours + 1e-3).log(), (theirs + 1e-3).log())
        loss = loss + (ours - theirs).norm() / theirs.norm()
    return loss / len(TRANSFORMS)


def decoder_loss(decode: Run, audio: Tensor, latents: Tensor) -> Tensor:
    """Loss of one batch of segments. Latents are a little noisy: those that the language model draws will be."""
    noisy = latents + 0.1 * torch.rand(len(latents), 1, 1) * torch.randn_like(latents)
    made = decode(noisy)
    skip = CONTEXT * BLOCK
    return spectral_loss(made[:, skip:], audio[:, skip:])


def encoder_loss(encode: Run, audio: Tensor, latents: Tensor) -> Tensor:
    """Loss of one batch of segments."""
    return F.mse_loss(encode(audio)[:, CONTEXT:], latents[:, CONTEXT:])


@torch.no_grad()
def tie_biases(part: Causal) -> None:
    """Give all frames that an upsampling makes of one the same bias, as a transposed convolution has it."""
    for stage in part.stages:
        if isinstance(stage, Upsample) and stage.linear.bias is not None:
            bias = stage.linear.bias.view(stage.stride, stage.outputs)
            bias.copy_(bias.mean(dim=0).expand_as(bias))


def runner(vae: AudioVAE, half: str, *, compiled: bool) -> Run:
    """One half as a function of a batch. Compiled it is four times as fast, after a minute or two of compilation."""

    def decode(latents: Tensor) -> Tensor:
        return vae.decode(latents, vae.decoder.new_state(len(latents)))[0]

    def encode(audio: Tensor) -> Tensor:
        return vae.encode(audio, vae.encoder.new_state(len(audio)))[0]

    plain = decode if half == "decoder" else encode
    return torch.compile(plain, dynamic=False) if compiled else plain


def train(
    work: Path,
    half: str,
    *,
    steps: int,
    rows: int,
    rate: float,
    seed: int,
    until: float | None,
    compiled: bool,
    source: str = "latents",
) -> None:
    """Train one half, going on from its checkpoint.

    Args:
        work: Folder of everything that training writes.
        half: ``decoder`` or ``encoder``.
        steps: Steps in all.
        rows: Segments of a batch.
        rate: Highest learning rate.
        seed: Of weights and data.
        until: Unix time at which the schedule must have come to its end, whatever ``steps`` says.
        compiled: Whether to compile the network.
        source: Folder of the latents: ``latents``, or ``drawn`` to finish the decoder on what it will be given.
    """
    path = work / f"{half}.pt"
    vae = new_vae(seed)
    part: Causal = getattr(vae, half)
    loss_of = decoder_loss if half == "decoder" else encoder_loss
    optimizer = torch.optim.AdamW(part.parameters(), lr=rate, betas=(0.8, 0.99), weight_decay=0.01)
    average = Average(part, 0.995)
    done = 0
    if (state := read_state(path)) is not None:
        part.load_state_dict(state["weights"])
        average.weights = state["average"]
        if "optimizer" in state:
            optimizer.load_state_dict(state["optimizer"])
        done = state["done"]
        tie_biases(part)
    run = runner(vae, half, compiled=compiled)
    segments = Segments(work, seed + done, source)
    started, progress, shown = time.time(), done / steps, None
    with tqdm(total=100.0, initial=100 * progress, desc=half, unit="%", bar_format="{l_bar}{bar}{postfix}") as bar:
        while progress < 1.0:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(progress, rate, warm_up=0.03)
            audio, latents = segments.batch(rows, CONTEXT + LENGTH)
            loss = loss_of(run, audio, latents)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(part.parameters(), 5.0)
            optimizer.step()
            tie_biases(part)
            done += 1
            average.update(part, done)
            spent = time.time() - started
            progress = done / steps if until is None else max(done / steps, spent / max(1e-9, until - started))
            value = loss.item()
            shown = value if shown is None else 0.98 * shown + 0.02 * value
            bar.set_postfix_str(f"step {done}, loss {shown:.3f}, {spent:.0f} s")
            bar.update(100 * progress - bar.n)
            if done % SAVE_EVERY == 0 or progress >= 1.0:
                saved = {"weights": part.state_dict(), "average": average.weights, "done": done}
                write_state(path, {**saved, "optimizer": optimizer.state_dict()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--half", choices=("decoder", "encoder"), required=True)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="end by then, with the schedule shortened to fit")
    parser.add_argument("--source", choices=("latents", "drawn"), default="latents", help="latents to train on")
    parser.add_argument("--eager", action="store_true", help="do not compile the network")
    given = parser.parse_args()
    torch.set_num_threads(1)
    limit = None if given.minutes is None else time.time() + 60 * given.minutes
    train(
        given.work,
        given.half,
        steps=given.steps,
        rows=given.rows,
        rate=given.rate,
        seed=given.seed,
        until=limit,
        compiled=not given.eager,
        source=given.source,
    )
