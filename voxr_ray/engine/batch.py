"""The batch: slots, lanes and what happens in them. Owner thread.

Each verb is one part of a cycle and leaves slot table and lanes in agreement: a lane is seated exactly while its slot
holds a row. A failure of one job's own work ends that job here. Whatever else is raised (a failed step or release, an
:class:`EngineStopped` from the model) leaves that agreement in doubt and passes to the loop, where it is fatal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from voxr_ray.engine.faults import blamed, fatal
from voxr_ray.engine.features import FeatureStore
from voxr_ray.engine.inbox import Inbox
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.model import SlotModel
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.record import Record, StepRecord
from voxr_ray.engine.reply import gone
from voxr_ray.engine.row import Row
from voxr_ray.engine.seating import Conditioning, Prepared, Seating, preparation
from voxr_ray.engine.slots import SlotTable
from voxr_ray.engine.waiting import WaitingList
from voxr_ray.engine.widths import stepped_width, stepped_widths
from voxr_ray.errors import EngineStopped, VoxrError


class Batch:
    """Seats, steps and releases rows.

    Args:
        model: Opened for ``options.max_batch`` slots of ``capacity`` positions.
        capacity: Positions of a slot.
        options: Width and chunk sizes.
        store: Resolves recordings.
        inbox: Is told how long slots are kept.
        record: Is told of steps, seats and retakes.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        model: SlotModel,
        capacity: int,
        options: EngineOptions,
        store: FeatureStore,
        inbox: Inbox,
        record: Record,
        clock: Callable[[], float],
    ) -> None:
        self.slots = SlotTable(options.max_batch)
        self._model = model
        self._spec = model.spec
        self._capacity = capacity
        self._options = options
        self._store = store
        self._inbox = inbox
        self._record = record
        self._clock = clock
        self._widths = stepped_widths(options.max_batch)
        self._last_end_s: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether a row has drawn a patch: from there on somebody listens."""
        return any(row.drawn for _, row in self.slots.rows())

    def reserve(self, job: RenderJob) -> None:
        """Give a job the lowest free slot, to be prepared in."""
        self._prepare_in(self.slots.lowest_free(), job, None)

    def advance_seating(self) -> bool:
        """Do one piece of the oldest reserved job, and admit it if that was the last.

        Returns:
            Whether there was a job under preparation.
        """
        seatings = self.slots.seatings()
        if not seatings:
            return False
        slot, seating = seatings[0]
        try:
            prepared = seating.advance()
            if prepared is not None:
                self._admit(slot, seating, prepared)
        except EngineStopped:
            raise
        except VoxrError as error:
            self._vacate(slot, seating)
            seating.job.reply.fail(error)
        return True

    def drop_gone(self) -> None:
        """Free the slots whose callers have left."""
        for slot, occupant in list(self.slots.occupants()):
            if occupant.job.gone:
                if isinstance(occupant, Row):
                    self._release(slot, occupant)
                else:
                    occupant.abandon()
                    self._vacate(slot, occupant)
                occupant.job.reply.fail(gone())

    def step(self, waiting: WaitingList, pieces: int) -> None:
        """Step all rows once; then, slot by slot, deliver what is due and release who is done.

        Args:
            waiting: For the record.
            pieces: Pieces of encode and seating work since the step before, for the record.
        """
        rows = self.slots.rows()
        sampler = self.slots.sampler
        if not rows or sampler is None:
            self._last_end_s = None
            return
        slots = tuple(slot for slot, _ in rows)
        width = stepped_width(slots[-1] + 1, self._widths)
        started_s = self._clock()
        with fatal("a step"):
            stops = self._model.step(width, sampler)
        stepped_s = self._clock()
        self._record.progressed(stepped_s)
        for slot, row in rows:
            row.draw(stop=bool(stops[slot]))
        audio = self._decode(slots)
        ended_s = self._clock()
        self._record.step(
            StepRecord(
                started_s=started_s,
                step_s=stepped_s - started_s,
                decode_s=ended_s - stepped_s,
                gap_s=0.0 if self._last_end_s is None else started_s - self._last_end_s,
                width=width,
                slots=slots,
                sampler=sampler,
                seatings=len(self.slots.seatings()),
                waiting=len(waiting),
                held=waiting.held(sampler),
                pieces=pieces,
            )
        )
        self._record.progressed(ended_s)
        for (slot, row), samples in zip(rows, audio, strict=True):
            self._visit(slot, row, samples)
        # Without a row nobody loses the time until the next step.
        self._last_end_s = ended_s if self.slots.rows() else None

    def abandon(self) -> None:
        """Drop all preparations and rows without a word to their callers, lanes untouched: the model is in doubt."""
        for slot, occupant in list(self.slots.occupants()):
            if isinstance(occupant, Seating):
                occupant.abandon()
            self.slots.clear(slot)

    def _prepare_in(self, slot: int, job: RenderJob, known: Conditioning | None) -> None:
        work = preparation(job, self._model, self._store, self._capacity, known)
        self.slots.put(slot, Seating(job, work, self._clock()))

    def _admit(self, slot: int, seating: Seating, prepared: Prepared) -> None:
        with blamed("the admission to a slot", seating.job.request.request_id):
            self._model.admit(slot, prepared.handoff, seating.job.seed)
        row = Row(seating.job, prepared.conditioning, self._spec, self._options, seating.since_s)
        self.slots.put(slot, row)
        self._record.seated()

    def _decode(self, slots: tuple[int, ...]) -> list[np.ndarray | VoxrError]:
        """Decode the newest patch of every slot: audio, or the error of that row alone.

        Every row is decoded at every step, so that a cycle always costs the same and no burst is saved up.
        """
        try:
            with blamed("a decode"):
                return list(self._model.decode(slots))
        except EngineStopped:
            raise
        except VoxrError as error:
            if len(slots) == 1:
                return [error]
        # No lane has moved. One by one, only the guilty row fails.
        return [self._decode((slot,))[0] for slot in slots]

    def _visit(self, slot: int, row: Row, samples: np.ndarray | VoxrError) -> None:
        """Deliver what is due to one row's caller, and release the row if it is done."""
        reply = row.job.reply
        try:
            if isinstance(samples, VoxrError):
                raise samples
            row.add(samples)
        except VoxrError as error:
            reply.fail(error)
            self._release(slot, row)
            return
        if row.ending is None:
            if row.job.stream and row.chunk_due:
                reply.chunk(row.cut())
            return
        if row.job.gone:
            reply.fail(gone())
        elif row.job.may_retake(row.drawn):
            self._retake(slot, row)
            return
        elif row.job.stream:
            last = row.cut()
            reply.chunk(last)
            reply.done(last.summary)
        else:
            reply.done(row.result(row.ending))
        self._release(slot, row)

    def _retake(self, slot: int, row: Row) -> None:
        """Render a bad take again in the slot it frees. The slot is never free in between, so nobody slips in."""
        self._release(slot, row)
        self._prepare_in(slot, row.job.retried(), row.conditioning)
        self._record.retaken()

    def _release(self, slot: int, row: Row) -> None:
        with fatal("the release of a slot"):
            self._model.release(slot)
        self._vacate(slot, row)

    def _vacate(self, slot: int, occupant: Seating | Row) -> None:
        self.slots.clear(slot)
        self._inbox.served(self._clock() - occupant.since_s)
