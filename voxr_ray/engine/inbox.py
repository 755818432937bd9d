"""The engine's door: the queue that other threads post to, and the list of every job inside.

Callers post on their threads; the owner thread drains at the start of every cycle, and waits here when it has nothing
to do. Because posting and the door's state share one lock, a job is either refused at the door or known to
:meth:`Inbox.stop`: no caller can slip in behind a stopping engine and wait for ever.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from voxr_ray.engine.jobs import EncodeJob, Job, RenderJob
from voxr_ray.engine.pace import Pace
from voxr_ray.errors import EngineStopped, Overloaded


class Door(Enum):
    """Whether jobs may come in."""

    OPEN = "open"
    CLOSING = "closing: those inside finish"
    STOPPED = "stopped: nothing inside will be finished"


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs inside, from submission to terminal event, and since when there has been one without a break."""

    renders: int
    encodes: int
    busy_since_s: float | None


class Inbox:
    """A bounded queue that knows its jobs until they end. Any thread.

    Args:
        width: Slots of the batch.
        max_queue: Render jobs accepted beyond the slots.
        max_encodes: Encode jobs accepted.
        clock: Monotonic seconds.
    """

    def __init__(self, *, width: int, max_queue: int, max_encodes: int, clock: Callable[[], float]) -> None:
        self._width = width
        self._max_renders = width + max_queue
        self._max_encodes = max_encodes
        self._clock = clock
        self._news = threading.Condition()
        self._door = Door.OPEN
        self._cause: EngineStopped | None = None
        self._queue: list[Job] = []
        self._inside: dict[int, Job] = {}
        self._encodes = 0
        self._busy_since_s: float | None = None
        self._sequence = 0
        self._pace = Pace(width)

    @property
    def door(self) -> Door:
        """Whether jobs may come in."""
        return self._door

    @property
    def cause(self) -> EngineStopped | None:
        """Why the engine stopped, if it did."""
        return self._cause

    @property
    def load(self) -> Load:
        """Jobs inside now."""
        with self._news:
            return Load(len(self._inside) - self._encodes, self._encodes, self._busy_since_s)

    @property
    def queued(self) -> bool:
        """Whether anything waits to be drained."""
        with self._news:
            return bool(self._queue)

    def check_open(self) -> None:
        """Find out whether the door is open.

        Raises:
            EngineStopped: The engine is closing or has stopped.
        """
        with self._news:
            self._check_door()

    def knock(self, *, moved: bool = False) -> None:
        """Find out cheaply whether a render would be refused at the door.

        Only :meth:`post` decides; this saves tokenizing a text for nothing.

        Args:
            moved: Whether a lost engine had accepted it before: then there is always room.

        Raises:
            EngineStopped: The engine is closing or has stopped.
            Overloaded: Slots and queue are full.
        """
        with self._news:
            self._check_door()
            if not moved:
                self._check_room_for_render()

    def next_sequence(self) -> int:
        """A fresh rank for a job about to be posted."""
        with self._news:
            self._sequence += 1
            return self._sequence

    def post(self, job: Job) -> None:
        """Queue a job.

        Raises:
            EngineStopped: The engine is closing or has stopped.
            Overloaded: As many jobs are inside as are allowed.
        """
        with self._news:
            self._check_door()
            if isinstance(job, RenderJob):
                if not job.moved:
                    self._check_room_for_render()
            elif self._encodes >= self._max_encodes:
                raise Overloaded(
                    f"{self._encodes} recordings are being encoded, the limit is {self._max_encodes}: try again later",
                    retry_after_s=1.0,
                )
            if not self._inside:
                self._busy_since_s = self._clock()
            self._inside[job.sequence] = job
            self._encodes += isinstance(job, EncodeJob)
            self._queue.append(job)
            self._news.notify_all()

    def settle(self, job: Job) -> None:
        """Strike a job off, at its terminal event. Whoever ends the reply."""
        with self._news:
            del self._inside[job.sequence]
            self._encodes -= isinstance(job, EncodeJob)
            if not self._inside:
                self._busy_since_s = None

    def served(self, seconds: float) -> None:
        """Note how long a job that now ends has kept its slot. Owner thread."""
        with self._news:
            self._pace.served(seconds)

    def drain(self) -> list[Job]:
        """Everything queued, oldest first. Owner thread; bounded by what the door lets in."""
        with self._news:
            drained, self._queue = self._queue, []
            return drained

    def wait(self, timeout_s: float | None) -> None:
        """Block until something is queued or the door is not open. Owner thread."""
        with self._news:
            self._news.wait_for(lambda: self._queue or self._door is not Door.OPEN, timeout_s)

    def jobs(self) -> list[Job]:
        """Every job inside."""
        with self._news:
            return list(self._inside.values())

    def close(self) -> None:
        """Let nobody in any more."""
        with self._news:
            if self._door is Door.OPEN:
                self._door = Door.CLOSING
            self._news.notify_all()

    def stop(self, cause: EngineStopped) -> list[Job]:
        """Close for good.

        The first cause stays: what comes after it is a consequence.

        Returns:
            Every job inside, for the caller of this to end. None can come in after them.
        """
        with self._news:
            if self._cause is None:
                self._door = Door.STOPPED
                self._cause = cause
            self._queue = []
            self._news.notify_all()
            return list(self._inside.values())

    def _check_door(self) -> None:
        if self._cause is not None:
            # A copy for each caller: a raised error collects the traceback of its thread.
            refusal = copy.copy(self._cause)
            refusal.__cause__ = self._cause.__cause__
            raise refusal
        if self._door is not Door.OPEN:
            raise EngineStopped("the engine is closing: it finishes what it has and takes nothing new")

    def _check_room_for_render(self) -> None:
        renders = len(self._inside) - self._encodes
        if renders >= self._max_renders:
            waiting = renders - self._width
            retry_after_s = self._pace.retry_after_s(waiting)
            raise Overloaded(
                f"all {self._width} slots are taken and {waiting} jobs wait, the limit is "
                f"{self._max_renders - self._width}: try again in {retry_after_s:.0f} s",
                retry_after_s=retry_after_s,
            )
