"""The board: what every replica is doing now, from the records of their engines, for people who watch.

A replica describes itself (:func:`describe`); a router asks all of them (:class:`Board`). Reading costs a replica a
copy of its latest steps, and a router one call to each replica, so a router asks at most a few times a second however
many people watch, and gives everybody the same answer.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ray import serve
from ray.serve.exceptions import RayServeException

from voxr_ray.engine.engine import Engine
from voxr_ray.engine.record import StepRecord
from voxr_ray.errors import VoxrError
from voxr_ray.messages import Sampler
from voxr_ray.serve.transport import Replicas

MOST_STEPS = 256
"""Steps of a replica on the board. At two readings a second that shows every step of two milliseconds or more."""

_FRESH_S = 0.25
"""Seconds for which one reading serves all who ask."""

_TIMEOUT_S = 2.0
"""Seconds a replica may take to describe itself; one that is frozen is counted as silent after them."""


@dataclass(frozen=True, slots=True)
class ReplicaBoard:
    """A replica at a moment.

    Attributes:
        replica_id: Its name in Serve.
        state: What the board shows of it; plain values that become JSON.
        steps: Its latest steps, oldest first, in the same form.
    """

    replica_id: str
    state: dict[str, Any]
    steps: list[dict[str, Any]]


def describe(engine: Engine, clock: Callable[[], float] = time.monotonic) -> ReplicaBoard:
    """What a replica says of itself. Any thread.

    Args:
        engine: Its engine.
        clock: The engine's clock: steps are dated on it.
    """
    snapshot = engine.snapshot()
    record, batch = snapshot.record, snapshot.record.batch
    spec = engine.spec
    now_s = clock()
    last = record.last_step
    state = {
        "host": socket.gethostname(),
        "running": engine.running,
        "now_s": now_s,
        "progress_age_s": max(0.0, now_s - record.progress_s),
        "patch_s": spec.samples_per_patch / spec.sample_rate_hz,
        "width": snapshot.width,
        "capacity": engine.capacity,
        # Without rows the latest step is history.
        "slots": list(last.slots) if last is not None and batch.rows else [],
        "rows": batch.rows,
        "seatings": batch.seatings,
        "waiting": batch.waiting,
        "held": batch.held,
        "encodes": batch.encodes,
        "inside": snapshot.load.renders,
        "sampler": _sampler(batch.sampler),
        "next_sampler": _sampler(batch.next_sampler),
        "counts": asdict(record.counts),
        "cache": asdict(batch.cache),
    }
    return ReplicaBoard(_replica_id(), state, [_step(step) for step in engine.record.steps()[-MOST_STEPS:]])


def _step(step: StepRecord) -> dict[str, Any]:
    return {
        "started_s": step.started_s,
        "step_ms": _ms(step.step_s),
        "decode_ms": _ms(step.decode_s),
        "gap_ms": _ms(step.gap_s),
        "width": step.width,
        "slots": list(step.slots),
        "sampler": _sampler(step.sampler),
        "seatings": step.seatings,
        "waiting": step.waiting,
        "held": step.held,
        "pieces": step.pieces,
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _sampler(sampler: Sampler | None) -> dict[str, float] | None:
    return None if sampler is None else asdict(sampler)


def _replica_id() -> str:
    try:
        return str(serve.get_replica_context().replica_id.unique_id)
    except RayServeException:  # not inside Serve
        return "local"


class Board:
    """The replicas as a router sees them. Runs on the router's event loop.

    Args:
        replicas: The replicas.
        clock: Monotonic seconds.
    """

    def __init__(self, replicas: Replicas, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicas = replicas
        self._clock = clock
        self._reading = asyncio.Lock()
        self._read_s = float("-inf")
        self._seen: list[ReplicaBoard | VoxrError] = []

    async def read(self, steps: int) -> dict[str, Any]:
        """The board, at most a quarter of a second old.

        Args:
            steps: Latest steps to show of each replica.

        Raises:
            VoxrError: The replicas cannot be asked.
        """
        async with self._reading:
            if self._clock() - self._read_s >= _FRESH_S:
                self._seen = await self._replicas.broadcast("board", timeout_s=_TIMEOUT_S)
                self._read_s = self._clock()
            seen = self._seen
        boards = sorted((each for each in seen if isinstance(each, ReplicaBoard)), key=lambda each: each.replica_id)
        return {
            "object": "board",
            "replicas": [
                {"id": each.replica_id, **each.state, "steps": each.steps[max(0, len(each.steps) - steps) :]}
                for each in boards
            ],
            "silent": len(seen) - len(boards),
        }
