"""One step of the lanes, as far as it runs on the device.

What is captured of a step (:mod:`voxr_ray.voxcpm2.captured`) and what runs kernel by kernel are the same functions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from voxr_ray.engine.widths import stepped_widths
from voxr_ray.messages import Sampler
from voxr_ray.voxcpm2.lanes import LENGTH_STEP, Lanes, Tensors, round_up
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.row_workers import RowWorkers

_log = logging.getLogger(__name__)


def draw_rows(
    network: VoxCPM2, rows: Tensors, noise: Tensor, *, inference_timesteps: int, guidance: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Draw the next patch of the first lanes, and change nothing.

    Nothing in here or in :func:`take_rows` waits for the device, copies from the host or looks at a tensor's values,
    and every shape follows from the arguments, so that both can be captured once the tokens of ``inference_timesteps``
    have been made.

    Args:
        network: The network.
        rows: All lanes; as many as ``noise`` has rows are read.
        noise: float32 ``(rows, patch_size, feat_dim)``.
        inference_timesteps: Euler steps.
        guidance: See :meth:`Solver.forward`.

    Returns:
        bool ``(rows,)``, whether the stop head won, and the patches, float32 ``(rows, patch_size, feat_dim)``.
    """
    width = noise.shape[0]
    base_hidden, residual_hidden = rows.base_hidden[:width], rows.residual_hidden[:width]
    # The decision belongs to the hidden state that conditions this patch, so it can be had before the patch is.
    stop = network.stop_wins(base_hidden)
    patches = network.draw(noise, base_hidden, residual_hidden, rows.previous[:width], inference_timesteps, guidance)
    return stop, patches


def take_rows(network: VoxCPM2, rows: Tensors, patches: Tensor, positions: Tensor, *, length: int) -> None:
    """Take patches just drawn into both language models; see :func:`draw_rows`.

    Args:
        network: The network.
        rows: All lanes; as many as there are patches are stepped, and their tensors are written.
        patches: float32 ``(rows, patch_size, feat_dim)``.
        positions: int64 ``(rows,)``, below ``length``.
        length: Positions of each lane that are read, a multiple of 64.
    """
    width = patches.shape[0]
    seen = torch.arange(length, device=positions.device)[None] <= positions[:, None]
    mask = torch.where(seen, 0.0, -torch.inf)[:, None, None, :]
    hidden, residual = network.step(patches, rows.base_cache, rows.residual_cache, positions, mask)
    rows.base_hidden[:width] = hidden
    rows.residual_hidden[:width] = residual
    rows.previous[:width] = patches


def eager_step(
    network: VoxCPM2, lanes: Lanes, width: int, sampler: Sampler, workers: RowWorkers
) -> tuple[Tensor, Tensor]:
    """A step that reads no further than lanes reach, its rows shared out among workers; gives what draw_rows gives."""
    taken = lanes.positions(width)
    noise = lanes.noise(width).to(network.device)

    def step(part: slice) -> tuple[Tensor, Tensor]:
        reached, rows = taken[part], lanes.tensors.part(part)
        stop, patches = draw_rows(
            network,
            rows,
            noise[part],
            inference_timesteps=sampler.inference_timesteps,
            guidance=sampler.cfg_value,
        )
        positions = torch.tensor(reached, dtype=torch.int64, device=network.device)
        take_rows(network, rows, patches, positions, length=round_up(max(reached) + 1, LENGTH_STEP))
        return stop, patches

    parts = workers.run([partial(step, part) for part in workers.split(width)])
    if len(parts) == 1:
        return parts[0]
    stops, patches = zip(*parts, strict=True)
    return torch.cat(stops), torch.cat(patches)


@torch.inference_mode()
def warm_up(
    network: VoxCPM2, width: int, capacity: int, workers: RowWorkers, *, decode_rows: int, most_s: float
) -> None:
    """Step and decode as many rows as there can be, narrowest first, so that what is recorded of them is there.

    Only the shortest lanes: how far they are read changes every 64 positions, and is recorded when it does.

    Args:
        network: The network.
        width: Slots.
        capacity: Positions of a slot.
        workers: Those of the steps to come.
        decode_rows: Most rows of one decode.
        most_s: Seconds after which no other width is begun.
    """
    begun_s = time.monotonic()
    lanes = Lanes(network, width, capacity, whole=True)  # on a CPU only what is written takes memory
    vae, config = network.audio_vae, network.config

    def decode(rows: int) -> None:
        vae.decode(torch.zeros(rows, config.patch_size, config.feat_dim), vae.decoder.new_state(rows))

    decodes = [partial(decode, rows) for rows in range(1, min(decode_rows, width) + 1)]
    # Each Euler step is the same for whatever is recorded, so a sampler of the fewest will do.
    steps = [partial(eager_step, network, lanes, each, Sampler(2.0, 2), workers) for each in stepped_widths(width)]
    todo: list[Callable[[], object]] = [*decodes, *steps]
    for done, run in enumerate(todo):
        if time.monotonic() - begun_s > most_s:
            _log.info("warmed up %d of %d widths of decodes and steps", done, len(todo))
            return
        run()
    _log.info("warmed up all %d widths of decodes and steps in %.1f s", len(todo), time.monotonic() - begun_s)
