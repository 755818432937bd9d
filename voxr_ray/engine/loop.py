"""The continuous-batching loop, one cycle at a time. Owner thread.

A cycle: take in what was posted, let go of callers who left, give free slots to waiting jobs, do a bounded amount of
preparing and encoding, step the seated rows once, deliver and release. A cycle never blocks; when it leaves nothing
to do, :meth:`Loop.run` waits at the inbox. Tests drive :meth:`Loop.cycle` themselves, without a thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from voxr_ray.engine.batch import Batch
from voxr_ray.engine.encoding import EncodeQueue
from voxr_ray.engine.features import FeatureStore
from voxr_ray.engine.inbox import Door, Inbox
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.model import SlotModel
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.record import BatchState, Record
from voxr_ray.engine.reference_cache import ReferenceCache
from voxr_ray.engine.reply import gone
from voxr_ray.engine.waiting import WaitingList
from voxr_ray.engine.window import GatheringWindow


class Turn(Enum):
    """What a cycle leaves."""

    GO_ON = "work: cycle again at once"
    OVER = "nothing, and the door is closed: the loop has ended"


@dataclass(frozen=True, slots=True)
class Rest:
    """A cycle left nothing to do until something is posted.

    Attributes:
        timeout_s: Or until so many seconds have passed, if it is set.
    """

    timeout_s: float | None


Outlook: TypeAlias = Turn | Rest


class Loop:
    """See the module. It owns everything it creates; only the inbox and the record are shared with other threads.

    Args:
        model: Opened for ``options.max_batch`` slots of ``capacity`` positions.
        capacity: Positions of a slot.
        options: How it batches.
        inbox: Where jobs come from.
        record: Where it writes down what it did.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        model: SlotModel,
        capacity: int,
        options: EngineOptions,
        inbox: Inbox,
        record: Record,
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._inbox = inbox
        self._record = record
        self._clock = clock
        self._cache = ReferenceCache(options.reference_cache_bytes)
        store = FeatureStore(model, self._cache)
        self.waiting = WaitingList()
        self.encodes = EncodeQueue(store)
        self.batch = Batch(model, capacity, options, store, inbox, record, clock)
        self._window = GatheringWindow(options.batch_window_s)
        # Encodes and seatings take turns, piece by piece, so that neither starves the other.
        self._turns: deque[Callable[[], bool]] = deque([self.encodes.advance, self.batch.advance_seating])
        self._pieces = 0
        self._waited_cycles = 0

    def run(self) -> None:
        """Cycle until the door is closed and everybody inside has been served."""
        while True:
            outlook = self.cycle()
            if outlook is Turn.OVER:
                return
            if isinstance(outlook, Rest):
                self._inbox.wait(outlook.timeout_s)

    def cycle(self) -> Outlook:
        """Do one cycle. Whatever it raises is fatal to the engine."""
        if self._inbox.door is Door.STOPPED:
            return Turn.OVER
        self._take_in()
        self._let_go()
        self._fill_slots()
        self._prepare()
        if self._may_step():
            pieces, self._pieces, self._waited_cycles = self._pieces, 0, 0
            self.batch.step(self.waiting, pieces)
        self._publish()
        return self._outlook()

    def abandon(self) -> None:
        """Drop everything without a word: whoever calls this ends the replies."""
        self.batch.abandon()
        self.encodes.abandon()
        self.waiting.clear()
        self._publish()

    def _take_in(self) -> None:
        """Empty the inbox, all of it: an encode must not queue behind a render that waits for a slot."""
        for job in self._inbox.drain():
            if isinstance(job, RenderJob):
                self.waiting.add(job)
            else:
                self.encodes.add(job)

    def _let_go(self) -> None:
        for job in self.waiting.take_gone():
            job.reply.fail(gone())
        self.batch.drop_gone()
        self.encodes.drop_gone()

    def _fill_slots(self) -> None:
        slots = self.batch.slots
        if slots.sampler is not None:
            jobs = self.waiting.take_joiners(slots.sampler, slots.free)
        elif self._may_open():
            jobs = self.waiting.take_openers(slots.width)
            self._window.opened()
        else:
            return
        for job in jobs:
            if job.place.take():
                self.batch.reserve(job)
            else:
                job.reply.fail(gone())

    def _may_open(self) -> bool:
        """Whether the empty batch opens now: somebody waits, and the window is over or can gain nothing."""
        if not self.waiting:
            self._window.went_idle()
            return False
        full = self.waiting.openers() >= self.batch.slots.width
        closing = self._inbox.door is not Door.OPEN
        return self._window_s() <= 0.0 or full or closing

    def _window_s(self) -> float:
        head = self.waiting.head
        if head is None:
            return 0.0
        return self._window.remaining_s(first_submitted_s=head.submitted_s, now_s=self._clock())

    def _prepare(self) -> None:
        """Do pieces of encode and seating work: few while rows are running, because each one is a stall for them.

        Before anybody has a patch there is nothing to stall, and the cycle that follows does the next piece; one at a
        time, so that the inbox is looked at in between.
        """
        limit = self._options.pieces_per_cycle if self.batch.under_way else 1
        for _ in range(limit):
            if not self._do_piece():
                return
            self._pieces += 1
            self._record.piece(self._clock())

    def _may_step(self) -> bool:
        """Whether there is a row to step that need not wait for those who opened the batch with it.

        A step of few rows takes most of what a step of all takes: of those who come together all but the first are
        heard earlier if they also start together. The first step waits for as many cycles, of a piece each, as there
        are slots, so that one who brings a long recording holds the others up no longer than a batch of short texts.
        """
        slots = self.batch.slots
        if not slots.rows():
            self._waited_cycles = 0
            return False
        if self.batch.under_way or not slots.seatings():
            return True
        self._waited_cycles += 1
        return self._waited_cycles >= slots.width

    def _do_piece(self) -> bool:
        for _ in range(len(self._turns)):
            advance = self._turns[0]
            self._turns.rotate(-1)
            if advance():
                return True
        return False

    def _outlook(self) -> Outlook:
        if self.encodes or not self.batch.slots.empty:
            return Turn.GO_ON
        if self.waiting:
            # Either the gathering window runs, or the batch has just emptied and opens again at once.
            remaining_s = self._window_s()
            return Rest(remaining_s) if remaining_s > 0.0 else Turn.GO_ON
        if self._inbox.door is not Door.OPEN and not self._inbox.queued:
            return Turn.OVER
        return Rest(None)

    def _publish(self) -> None:
        slots = self.batch.slots
        head = self.waiting.head
        rows = len(slots.rows())
        self._record.publish(
            BatchState(
                rows=rows,
                seatings=slots.width - slots.free - rows,
                waiting=len(self.waiting),
                held=self.waiting.held(slots.sampler),
                encodes=len(self.encodes),
                sampler=slots.sampler,
                next_sampler=None if head is None else head.sampler,
                cache=self._cache.stats,
            ),
            self._cache.keys,
        )
