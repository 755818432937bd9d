"""An engine's loop without its thread: tests run it cycle by cycle, on a clock they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fakes.slot_model import FakeSlotModel, make_fake_model
from tests.fakes.solo import render_alone
from voxr_ray.engine.admission import Admission
from voxr_ray.engine.inbox import Inbox
from voxr_ray.engine.loop import Loop, Outlook, Rest, Turn
from voxr_ray.engine.model import Padding
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.owner import Owner
from voxr_ray.engine.record import Counts, Record
from voxr_ray.engine.reply import Done, Event, Failed, Reply
from voxr_ray.engine.ticket import Ticket
from voxr_ray.errors import EngineStopped, VoxrError
from voxr_ray.messages import AudioChunk, Recording, SynthRequest, SynthResult


class Probe(Reply[Any]):
    """A reply that keeps every event it gets.

    Args:
        on_event: Called with each event, on the engine's side; may raise, as a consumer's callback may.
    """

    def __init__(self, on_event: Callable[[Event[Any]], None] = lambda event: None) -> None:
        super().__init__()
        self.events: list[Event[Any]] = []
        self._on_event = on_event

    @property
    def chunks(self) -> list[AudioChunk]:
        return [event for event in self.events if isinstance(event, AudioChunk)]

    @property
    def endings(self) -> list[Done[Any] | Failed]:
        return [event for event in self.events if not isinstance(event, AudioChunk)]

    @property
    def ended(self) -> bool:
        return bool(self.endings)

    @property
    def error(self) -> VoxrError | None:
        """The error it ended with; checks that it ended at most once, and that nothing followed."""
        if not self.endings:
            return None
        (ending,) = self.endings
        assert self.events[-1] is ending
        return ending.error if isinstance(ending, Failed) else None

    @property
    def result(self) -> Any:
        """The result it ended with; checks that it ended once, and that nothing followed."""
        (ending,) = self.endings
        assert self.events[-1] is ending
        if isinstance(ending, Failed):
            raise ending.error
        return ending.result

    @property
    def streamed(self) -> SynthResult:
        """A stream's chunks put together; checks that they form a whole."""
        assert [chunk.index for chunk in self.chunks] == list(range(len(self.chunks)))
        assert all(chunk.summary is None for chunk in self.chunks[:-1])
        assert self.chunks[-1].summary == self.result
        return SynthResult(np.concatenate([chunk.samples for chunk in self.chunks]), self.result)

    def _deliver(self, event: Event[Any]) -> None:
        self.events.append(event)
        self._on_event(event)


class Driver:
    """Loop, inbox and record around a fake model.

    Args:
        model: Instead of a default fake.
        options: Fields of :class:`EngineOptions`. The window is zero unless given.
    """

    def __init__(self, model: FakeSlotModel | None = None, **options: Any) -> None:
        self.now_s = 100.0
        self.model = model or make_fake_model()
        self.options = EngineOptions(**({"batch_window_s": 0.0} | options))
        self.record = Record(self.options.record_steps, self.now_s)
        self.inbox = Inbox(
            width=self.options.max_batch,
            max_queue=self.options.max_queue,
            max_encodes=self.options.max_encode_queue,
            clock=self.clock,
        )
        capacity = min(self.options.continuous_capacity, self.model.spec.max_positions)
        self.model.open(self.options.max_batch, capacity)
        self.loop = Loop(self.model, capacity, self.options, self.inbox, self.record, self.clock)
        self.admission = Admission(self.model, capacity, self.inbox, self.record, self.clock)
        self.tickets: dict[Probe, Ticket] = {}

    def clock(self) -> float:
        return self.now_s

    def submit(self, request: SynthRequest, *, stream: bool = False, reply: Probe | None = None) -> Probe:
        reply = reply or Probe()
        self.tickets[reply] = self.admission.submit(request, reply, stream=stream)
        return reply

    def encode(self, recording: Recording, padding: Padding = Padding.RIGHT) -> Probe:
        reply = Probe()
        self.admission.encode(recording, padding, reply)
        return reply

    def cycle(self, times: int = 1) -> Outlook:
        outlook: Outlook = Turn.GO_ON
        for _ in range(times):
            outlook = self.loop.cycle()
        return outlook

    def run(self, until: Callable[[], bool] | None = None, limit: int = 10_000) -> Outlook:
        """Cycle until ``until``, or until nothing is left to do; the clock jumps over rests."""
        if until is not None and until():
            return Turn.GO_ON
        for _ in range(limit):
            outlook = self.loop.cycle()
            if until is not None and until():
                return outlook
            if isinstance(outlook, Rest) and outlook.timeout_s is not None:
                self.now_s += outlook.timeout_s
            elif outlook is not Turn.GO_ON and until is None:
                return outlook
        raise AssertionError(f"not there after {limit} cycles")

    def step(self) -> None:
        """Cycle until one more step is made."""
        before = self.counts.steps
        self.run(lambda: self.counts.steps > before)

    def fail_all(self, reason: str) -> None:
        """Give the engine up, as the watchdog and a fatal fault do."""
        Owner(lambda: self.model, self.options, self.inbox, self.record, self.clock).stop(EngineStopped(reason))

    @property
    def counts(self) -> Counts:
        return self.record.snapshot().counts

    @property
    def seated(self) -> dict[int, str]:
        """Texts by slot, seatings and rows alike."""
        return {slot: occupant.job.request.text for slot, occupant in self.loop.batch.slots.occupants()}

    @property
    def rows(self) -> list[int]:
        """Slots with a row."""
        return [slot for slot, _ in self.loop.batch.slots.rows()]

    def check_idle(self) -> None:
        """Nothing is left anywhere: no slot, lane, queue entry, generator or open job."""
        assert self.loop.batch.slots.empty
        assert self.model.seated_slots == []
        assert self.model.open_works == 0
        assert len(self.loop.waiting) == 0
        assert len(self.loop.encodes) == 0
        assert not self.inbox.queued
        load = self.inbox.load
        assert (load.renders, load.encodes, load.busy_since_s) == (0, 0, None)
        counts = self.counts
        ended = sum(counts.finished.values()) + counts.encodes + counts.cancelled + sum(counts.failed.values())
        assert counts.submitted == ended


def request(text: str = "one two", seed: int | None = 1, **fields: Any) -> SynthRequest:
    """A request with a seed, so that it has one right answer."""
    return SynthRequest(text=text, seed=seed, **fields)


def check_alone(got: SynthResult, asked: SynthRequest, *, stream: bool = False, **model_arguments: Any) -> None:
    """``got`` is, byte for byte, what ``asked`` gives when it is rendered with nobody near."""
    want = render_alone(asked, stream=stream, **model_arguments)
    assert got.summary == want.summary
    assert got.samples.tobytes() == want.samples.tobytes()
