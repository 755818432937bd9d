"""Captured steps: the kernels of a step recorded once for each shape, and launched together from then on.

A step launches thousands of small kernels, which on a GPU takes longer than to run them. A graph launches them in one
call, at the price that shapes and addresses are fixed. So a graph exists for each stepped width and each of a few
lengths that the lanes are read to; inputs are copied to the same places before, and outputs from the same places after.

A graph that is not there yet is captured behind a step that ran without it, which also is what libraries need to have
their handles ready. Where capturing fails the step goes on without, for good. Owner thread only.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from voxr_ray.engine.widths import stepped_widths
from voxr_ray.messages import Sampler
from voxr_ray.voxcpm2.lanes import LENGTH_STEP, Lanes, round_up
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.row_step import step_rows

_log = logging.getLogger(__name__)

SHORTEST_READ = 256
"""Positions that captured steps read at least."""

MOST_GRAPHS = 64
"""Graphs that are kept: every shape of 64 slots of 4096 positions, for one number of Euler steps."""

_PROGRESS_S = 5.0
"""Seconds between two words on how far a warm-up is."""

Region: TypeAlias = Callable[[], None]
Capture: TypeAlias = Callable[[Region], Callable[[], None]]
"""Records what a region does, without doing it, and gives what repeats it."""


class GraphKey(NamedTuple):
    """The shape of a captured step."""

    width: int
    length: int
    inference_timesteps: int


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """How steps are captured.

    Attributes:
        capture: Records a step.
        inference_timesteps: Euler steps that most requests will have: captured before the first of them.
        most: Graphs that are kept; the one that was not used for longest goes first.
    """

    capture: Capture
    inference_timesteps: int = 10
    most: int = MOST_GRAPHS


def read_lengths(capacity: int) -> tuple[int, ...]:
    """How far captured steps read lanes of ``capacity`` positions: few lengths, each at most twice the one before."""
    whole = round_up(capacity, LENGTH_STEP)
    lengths = []
    length = SHORTEST_READ
    while length < whole:
        lengths.append(length)
        length *= 2
    return (*lengths, whole)


def count_graphs(width: int, capacity: int) -> int:
    """Graphs there can be of so many slots of so many positions, at most."""
    return min(MOST_GRAPHS, len(stepped_widths(width)) * len(read_lengths(capacity)))


def cuda_capture(device: torch.device) -> Capture:
    """Capture as CUDA graphs, which share their work space.

    They may, because nothing that is made inside of one is read after it, and one runs at a time.
    """
    pool = torch.cuda.graph_pool_handle()

    def capture(region: Region) -> Callable[[], None]:
        with torch.cuda.device(device):
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process may allocate while this one captures.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                region()
        return graph.replay

    return capture


class StepGraphs:
    """The captured steps of some lanes.

    Args:
        network: The network.
        lanes: All of them made, since graphs keep their addresses.
        options: How to capture.
    """

    def __init__(self, network: VoxCPM2, lanes: Lanes, options: GraphOptions) -> None:
        if lanes.rows != lanes.width:
            raise ValueError(f"{lanes.rows} of {lanes.width} lanes are made: captured steps need all of them")
        self._network, self._lanes, self._options = network, lanes, options
        config, device = network.config, network.device
        self._lengths = read_lengths(lanes.capacity)
        patches = (lanes.width, config.patch_size, config.feat_dim)
        self._noise = torch.zeros(patches, device=device)
        self._positions = torch.zeros(lanes.width, dtype=torch.int64, device=device)
        # Copies from pinned memory do not wait. Written again only after the step they are for: its caller waits for
        # what it drew.
        pinned = device.type == "cuda"
        self._host_noise = torch.zeros(patches, pin_memory=pinned)
        self._host_positions = torch.zeros(lanes.width, dtype=torch.int64, pin_memory=pinned)
        self._guidance = torch.zeros((), device=device)
        self._stop = torch.zeros(lanes.width, dtype=torch.bool, device=device)
        self._patches = torch.zeros(patches, device=device)
        self._replays: OrderedDict[GraphKey, Callable[[], None]] = OrderedDict()
        self._failed: set[GraphKey] = set()

    @property
    def kept(self) -> tuple[GraphKey, ...]:
        """What is captured, longest unused first."""
        return tuple(self._replays)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Capture every shape before the first request, as far as there is room, and leave the lanes as they were."""
        steps = self._options.inference_timesteps
        keys = [
            GraphKey(width, length, steps) for length in self._lengths for width in stepped_widths(self._lanes.width)
        ]
        keys = keys[: self._options.most]
        start_s = said_s = time.monotonic()
        for done, key in enumerate(keys):
            now_s = time.monotonic()
            if now_s - said_s >= _PROGRESS_S:
                said_s = now_s
                _log.info("captured %d of %d steps in %.0f s", done, len(keys), now_s - start_s)
            self._region(key)()
            self._record(key)
            if self._failed:
                break
        self._lanes.wipe()
        _log.info("captured %d of %d steps in %.1f s", len(self._replays), len(keys), time.monotonic() - start_s)

    def step(self, width: int, sampler: Sampler) -> tuple[torch.Tensor, torch.Tensor]:
        """A step of the lanes below ``width``; gives what :func:`step_rows` does, in tensors of the caller's own."""
        taken = self._lanes.positions(width)
        self._host_noise[:width] = self._lanes.noise(width)
        self._host_positions[:width] = torch.tensor(taken, dtype=torch.int64)
        self._noise[:width].copy_(self._host_noise[:width], non_blocking=True)
        self._positions[:width].copy_(self._host_positions[:width], non_blocking=True)
        self._guidance.fill_(sampler.cfg_value)
        key = GraphKey(width, self._length(max(taken) + 1), sampler.inference_timesteps)
        if (replay := self._replays.get(key)) is not None:
            self._replays.move_to_end(key)
            replay()
        else:
            self._region(key)()
            if key not in self._failed:
                self._record(key)
        return self._stop[:width].clone(), self._patches[:width].clone()

    def _length(self, positions: int) -> int:
        return next(length for length in self._lengths if length >= positions)

    def _region(self, key: GraphKey) -> Region:
        """What is captured for a shape: a step between the tensors that stay where they are."""
        network, rows, width = self._network, self._lanes.tensors, key.width

        def region() -> None:
            stop, patches = step_rows(
                network,
                rows,
                self._noise[:width],
                self._positions[:width],
                length=key.length,
                inference_timesteps=key.inference_timesteps,
                guidance=self._guidance,
            )
            self._stop[:width] = stop
            self._patches[:width] = patches

        return region

    def _record(self, key: GraphKey) -> None:
        """Capture a shape whose step has just run; remember it if that cannot be done."""
        while len(self._replays) >= self._options.most:
            self._replays.popitem(last=False)
        try:
            self._replays[key] = self._options.capture(self._region(key))
        except RuntimeError as error:  # CUDA's own and those of its memory are kinds of it
            if not self._failed:
                _log.warning(
                    "a step of %d slots and %d positions cannot be captured and runs kernel by kernel, as will others "
                    "that cannot: %s",
                    key.width,
                    key.length,
                    str(error).partition("\n")[0],
                )
            self._failed.add(key)
