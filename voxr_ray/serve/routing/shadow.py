"""One replica's engine, as a router reckons it between reports.

The router knows its own calls exactly, from the moment it places them; it plays the engine's sampler rule with them to
tell who has a slot. What other routers have there it knows from the replica's latest report, which also corrects its
own reckoning. Runs on the event loop of the router it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass

from voxr_ray.serve.routing.policy import View
from voxr_ray.serve.routing.values import CallTag, Report, SamplerKey, Waiter


@dataclass(slots=True)
class _Own:
    """A call of this router.

    Attributes:
        sampler: What it needs.
        seated: Whether it has a slot, as far as is known.
        sure: Whether that is more than reckoned: there was audio, or the replica refused to give it back.
        known: Whether a report was made after its arrival.
    """

    sampler: SamplerKey
    seated: bool = False
    sure: bool = False
    known: bool = False


class Shadow:
    """See the module.

    Args:
        name: The replica's unique id.
        width: Slots of its engine.
        room: Requests its engine accepts.
    """

    def __init__(self, name: str, width: int, room: int) -> None:
        self.name = name
        self._width = width
        self._room = room
        self._calls: dict[CallTag, _Own] = {}
        self._queue: list[Waiter] = []
        self._others: Counter[SamplerKey] = Counter()
        self._voices: frozenset[str] = frozenset()
        self._peers = 0
        self._view: View | None = None

    @property
    def view(self) -> View:
        """The replica now. Made when something changed, so that a decision over many replicas is cheap."""
        if self._view is None:
            self._advance()
            groups = Counter(waiter.sampler for waiter in self._queue)  # in the order of the first of each
            self._view = View.of(
                name=self.name,
                width=self._width,
                room=self._room,
                running=self._running(),
                rows=self._rows(),
                queue=tuple(groups.items()),
                voices=self._voices,
                unseen=self._peers * sum(not call.known for call in self._calls.values()) if self._peers else 0,
            )
        return self._view

    def waiting(self) -> Iterator[Waiter]:
        """This router's calls that have no slot, oldest first."""
        if self._view is None:
            self._advance()
        return (waiter for waiter in self._queue if waiter.tag in self._calls)

    def add(self, tag: CallTag, sampler: SamplerKey) -> None:
        """Note a call that is placed here."""
        self._calls[tag] = _Own(sampler)
        self._queue.append(Waiter(tag, sampler))
        self._view = None

    def remove(self, tag: CallTag) -> None:
        """Note that a call has ended or is not here after all."""
        if self._calls.pop(tag, None) is not None:
            self._queue = [waiter for waiter in self._queue if waiter.tag != tag]
            self._view = None

    def seated(self, tag: CallTag) -> None:
        """Note that a call has a slot for certain."""
        call = self._calls.get(tag)
        if call is None or call.sure:
            return
        call.sure = True
        if not call.seated:
            call.seated = True
            self._queue = [waiter for waiter in self._queue if waiter.tag != tag]
            self._agree(call.sampler)
            self._view = None

    def report(self, report: Report, own: Container[str], peers: int) -> None:
        """Correct the reckoning.

        Args:
            report: What the replica said; it is up to seconds old.
            own: Names under which this router makes calls.
            peers: How many other routers there are.
        """
        waiting = {waiter.tag for waiter in report.queue}
        queue = [
            waiter
            for waiter in report.queue
            if waiter.tag.router not in own or (waiter.tag in self._calls and not self._calls[waiter.tag].sure)
        ]
        for tag, call in self._calls.items():
            call.known = tag.number <= report.latest.get(tag.router, -1)
            if call.sure:
                continue
            if call.known:
                call.seated = tag not in waiting
            elif not call.seated:  # still on its way when the report was made
                queue.append(Waiter(tag, call.sampler))
        self._queue = queue
        self._voices = report.voices
        self._peers = peers
        self._others.clear()
        for seats in report.seats:
            if seats.router not in own:
                self._others[seats.sampler] += seats.count
        running = next((call.sampler for call in self._calls.values() if call.sure), None)
        running = running or next(iter(self._others), None)
        if running is not None:
            self._agree(running)
        self._view = None

    def _agree(self, running: SamplerKey) -> None:
        """All rows share a sampler: let go of what was believed and contradicts one that is known to run."""
        for sampler in [each for each in self._others if each != running]:
            del self._others[sampler]
        for tag, call in self._calls.items():
            if call.seated and not call.sure and call.sampler != running:
                call.seated = False
                self._queue.append(Waiter(tag, call.sampler))

    def _running(self) -> SamplerKey | None:
        for sampler in self._others:
            return sampler
        return next((call.sampler for call in self._calls.values() if call.seated), None)

    def _rows(self) -> int:
        return self._others.total() + sum(call.seated for call in self._calls.values())

    def _advance(self) -> None:
        """Give free slots to those the engine would give them to."""
        rows, running = self._rows(), self._running()
        rest: list[Waiter] = []
        if rows == 0 and self._queue:
            running = self._queue[0].sampler
            for waiter in self._queue:
                if waiter.sampler == running and rows < self._width:
                    self._seat(waiter)
                    rows += 1
                else:
                    rest.append(waiter)
        else:
            joining = True
            for waiter in self._queue:
                joining = joining and waiter.sampler == running and rows < self._width
                if joining:
                    self._seat(waiter)
                    rows += 1
                else:
                    rest.append(waiter)
        self._queue = rest

    def _seat(self, waiter: Waiter) -> None:
        call = self._calls.get(waiter.tag)
        if call is None:
            self._others[waiter.sampler] += 1
        else:
            call.seated = True
