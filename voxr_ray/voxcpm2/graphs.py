"""Captured graphs: kernels recorded once for each shape, and launched together from then on.

A step launches thousands of small kernels, which on a GPU takes longer than to run them. A graph launches them in one
call, at the price that shapes and addresses are fixed: inputs are copied to the same places before, and outputs from
the same places after (:mod:`voxr_ray.voxcpm2.captured`).

A graph that is not there yet is captured behind a run without it, which also is what libraries need to have their
handles ready. Where capturing fails that shape goes on without, for good. Owner thread only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import torch

from voxr_ray.engine.widths import stepped_widths
from voxr_ray.voxcpm2.lanes import LENGTH_STEP, round_up

_log = logging.getLogger(__name__)

SHORTEST_READ = 256
"""Positions that captured steps read at least."""

MOST_GRAPHS = 96
"""Graphs that are kept: every shape of 64 slots of 4096 positions, for one number of Euler steps, and some."""

Region: TypeAlias = Callable[[], None]
Capture: TypeAlias = Callable[[Region], Callable[[], None]]
"""Records what a region does, without doing it, and gives what repeats it."""


class GraphKind(Enum):
    """What is captured by itself; in its shape, what the extent counts."""

    DRAW = "the stop decisions and patches of a step; its Euler steps"
    TAKE = "the language models' taking of the patches; the positions that are read"
    DECODE = "the audio of a patch of each lane; one"


class GraphKey(NamedTuple):
    """The shape of what is captured: a number of lanes, and what :class:`GraphKind` says of the extent."""

    kind: GraphKind
    width: int
    extent: int


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """What is captured, and how.

    Attributes:
        captures: Records a region of each kind. Those of one capture share their work space, so kinds that run beside
            each other need captures of their own.
        inference_timesteps: Euler steps that most requests will have: captured before the first of them.
        most: Graphs that are kept; the one that was not used for longest goes first.
    """

    captures: Mapping[GraphKind, Capture]
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


def graph_keys(width: int, capacity: int, inference_timesteps: int) -> list[GraphKey]:
    """Every shape of so many slots of so many positions; those that are needed soonest first."""
    widths = stepped_widths(width)
    draws = [GraphKey(GraphKind.DRAW, each, inference_timesteps) for each in widths]
    takes = [GraphKey(GraphKind.TAKE, each, length) for length in read_lengths(capacity) for each in widths]
    return [*draws, *(GraphKey(GraphKind.DECODE, each, 1) for each in widths), *takes]


def cuda_captures(device: torch.device) -> dict[GraphKind, Capture]:
    """Captures of CUDA graphs: those of the steps share their work space, those that run beside them have their own."""
    steps, beside = cuda_capture(device), cuda_capture(device)
    return {GraphKind.DRAW: steps, GraphKind.TAKE: steps, GraphKind.DECODE: beside}


def cuda_capture(device: torch.device) -> Capture:
    """A capture of CUDA graphs that share a work space.

    They may, because nothing that is made inside of one is read after it, and one runs at a time. A pool is not all of
    it: what cuBLAS works in belongs to the stream that is captured, and torch captures on the same one for everybody
    who brings none.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(region: Region) -> Callable[[], None]:
        with torch.cuda.device(device):
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process may allocate while this one captures.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                region()
        return graph.replay

    return capture


@dataclass(slots=True)
class Graphs:
    """The graphs that are kept.

    Args:
        options: How to capture, and how many to keep.
    """

    options: GraphOptions
    _replays: OrderedDict[GraphKey, Callable[[], None]] = field(default_factory=OrderedDict)
    _failed: set[GraphKey] = field(default_factory=set)

    @property
    def kept(self) -> tuple[GraphKey, ...]:
        """What is captured, longest unused first."""
        return tuple(self._replays)

    @property
    def failing(self) -> bool:
        """Whether a capture has failed."""
        return bool(self._failed)

    def run(self, key: GraphKey, region: Region) -> None:
        """Do what ``region`` does: by its graph, or by itself and then capture it."""
        if (replay := self._replays.get(key)) is not None:
            self._replays.move_to_end(key)
            replay()
            return
        region()
        if key not in self._failed:
            self._record(key, region)

    def _record(self, key: GraphKey, region: Region) -> None:
        while len(self._replays) >= self.options.most:
            self._replays.popitem(last=False)
        try:
            self._replays[key] = self.options.captures[key.kind](region)
        except RuntimeError as error:  # CUDA's own and those of its memory are kinds of it
            if not self._failed:
                _log.warning(
                    "%s (%d slots, %d) cannot be captured and runs kernel by kernel, as will others that cannot: %s",
                    key.kind.name.lower(),
                    key.width,
                    key.extent,
                    str(error).partition("\n")[0],
                )
            self._failed.add(key)
