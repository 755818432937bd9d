"""Captured steps and decodes: graphs for each width, between tensors that stay where they are.

A step is two graphs, so that what it drew can be decoded while the language models take it in: one that draws, for each
number of Euler steps, and one that takes, for each of a few lengths that the lanes are read to. Owner thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from voxr_ray.engine.widths import stepped_width, stepped_widths
from voxr_ray.messages import Sampler
from voxr_ray.voxcpm2.graphs import GraphKey, GraphKind, GraphOptions, Graphs, Region, graph_keys, read_lengths
from voxr_ray.voxcpm2.lanes import Lanes
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.row_step import draw_rows, take_rows
from voxr_ray.voxcpm2.streams import Streams

_log = logging.getLogger(__name__)

_PROGRESS_S = 5.0
"""Seconds between two words on how far a warm-up is."""


class Inlet:
    """A tensor that graphs read, and the host's side of it, which is pinned on a GPU so that sending does not wait.

    The host's side is written again only after what it was sent for, which the sender waits for.

    Args:
        shape: ``(lanes, …)`` of both.
        dtype: Of both.
        device: Where graphs run.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.device = torch.zeros(shape, dtype=dtype, device=device)

    def send(self, width: int) -> None:
        """Copy the lanes below ``width`` to the device, in the order of the current stream."""
        self.device[:width].copy_(self.host[:width], non_blocking=True)


class CapturedSteps:
    """The captured steps and decodes of some lanes.

    Args:
        network: The network.
        lanes: All of them made, since graphs keep their addresses.
        options: How to capture.
        streams: Where decodes run.
    """

    def __init__(self, network: VoxCPM2, lanes: Lanes, options: GraphOptions, streams: Streams) -> None:
        if lanes.rows != lanes.width:
            raise ValueError(f"{lanes.rows} of {lanes.width} lanes are made: captured steps need all of them")
        self._network, self._lanes, self._streams = network, lanes, streams
        self._graphs = Graphs(options)
        config, device = network.config, network.device
        self._lengths = read_lengths(lanes.capacity)
        self._widths = stepped_widths(lanes.width)
        patches = (lanes.width, config.patch_size, config.feat_dim)
        self._noise = Inlet(patches, torch.float32, device)
        self._positions = Inlet((lanes.width,), torch.int64, device)
        self._decoded = Inlet((lanes.width, 1, 1), torch.bool, device)
        self._guidance = torch.zeros((), device=device)
        self._stop = torch.zeros(lanes.width, dtype=torch.bool, device=device)
        self._patches = torch.zeros(patches, device=device)
        samples = config.patch_size * config.audio_vae_config.decoder_hop
        self._audio = torch.zeros(lanes.width, samples, device=device)
        # Here from the start: no decode may fail once it has moved the lanes.
        self._host_audio = torch.zeros(lanes.width, samples, pin_memory=device.type == "cuda")

    @property
    def kept(self) -> tuple[GraphKey, ...]:
        """What is captured, longest unused first."""
        return self._graphs.kept

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture every shape before the first request, as far as there is room, and leave the lanes as they were."""
        options = self._graphs.options
        keys = graph_keys(self._lanes.width, self._lanes.capacity, options.inference_timesteps)[: options.most]
        start_s = said_s = time.monotonic()
        for done, key in enumerate(keys):
            now_s = time.monotonic()
            if now_s - said_s >= _PROGRESS_S:
                said_s = now_s
                _log.info("captured %d of %d graphs in %.0f s", done, len(keys), now_s - start_s)
            self._graphs.run(key, self._region(key))
            if self._graphs.failing:
                break
        self._lanes.wipe()
        # Whatever comes next beside the steps finds the lanes wiped.
        self._streams.mark()
        _log.info("captured %d of %d graphs in %.1f s", len(self.kept), len(keys), time.monotonic() - start_s)

    def step(self, width: int, sampler: Sampler) -> tuple[np.ndarray, Tensor]:
        """A step of the lanes below ``width``, whose patches are drawn when it returns and may not be taken in yet.

        Returns:
            bool ``(width,)``, whether the stop head won, and the patches, float32 ``(width, patch_size, feat_dim)``
            on the device. Both are the caller's own.
        """
        taken = self._lanes.positions(width)
        self._noise.host[:width] = self._lanes.noise(width)
        self._positions.host[:width] = torch.tensor(taken, dtype=torch.int64)
        self._noise.send(width)
        self._positions.send(width)
        self._guidance.fill_(sampler.cfg_value)
        self._run(GraphKey(GraphKind.DRAW, width, sampler.inference_timesteps))
        patches, stop = self._patches[:width].clone(), self._streams.to_host(self._stop[:width])
        self._streams.mark()
        self._run(GraphKey(GraphKind.TAKE, width, self._length(max(taken) + 1)))
        self._streams.reach_mark()
        return stop.numpy().copy(), patches

    def decode(self, slots: Sequence[int]) -> Tensor:
        """Decode the patches that the last step drew in ``slots``, beside the steps: float32 ``(width, samples)``.

        The lanes' decoder states move on; lanes that are not named keep theirs, whatever comes out of them.

        Returns:
            Audio of every lane below a stepped width, on the host once the caller has left the other stream, and until
            the next decode.
        """
        width = stepped_width(max(slots) + 1, self._widths)
        self._decoded.host.zero_()
        self._decoded.host[list(slots)] = True
        self._decoded.send(width)
        self._run(GraphKey(GraphKind.DECODE, width, 1))
        return self._streams.to_host(self._audio[:width], self._host_audio[:width])

    def _run(self, key: GraphKey) -> None:
        self._graphs.run(key, self._region(key))

    def _length(self, positions: int) -> int:
        return next(length for length in self._lengths if length >= positions)

    def _region(self, key: GraphKey) -> Region:
        """What is captured for a shape."""
        network, rows, width = self._network, self._lanes.tensors, key.width

        def draw() -> None:
            noise = self._noise.device[:width]
            stop, patches = draw_rows(network, rows, noise, inference_timesteps=key.extent, guidance=self._guidance)
            self._stop[:width] = stop
            self._patches[:width] = patches

        def take() -> None:
            take_rows(network, rows, self._patches[:width], self._positions.device[:width], length=key.extent)

        def decode() -> None:
            before = [tail[:width] for tail in rows.decoder_state]
            audio, after = network.audio_vae.decode(self._patches[:width], before)
            # Where this runs kernel by kernel, all that can fail comes before the first lane moves.
            moved = [
                torch.where(self._decoded.device[:width], new, old) for new, old in zip(after, before, strict=True)
            ]
            self._audio[:width] = audio
            for tail, new in zip(before, moved, strict=True):
                tail.copy_(new)

        return {GraphKind.DRAW: draw, GraphKind.TAKE: take, GraphKind.DECODE: decode}[key.kind]
