"""The renders inside a replica by the routers that sent them: what it reports, and how it gives one back.

Runs on the event loop of the replica.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from voxr_ray.engine.engine import Engine
from voxr_ray.engine.reference_cache import Key
from voxr_ray.engine.ticket import Ticket
from voxr_ray.errors import Cancelled
from voxr_ray.messages import SynthRequest
from voxr_ray.serve.routing.values import CallTag, Report, SamplerKey, Seats, Waiter, Wish, Withdrawn, voice_key

_MOST_VOICES = 256
"""Cached recordings in a report, which goes to every router."""

_MOST_ROUTERS = 64
"""Routers whose latest call is remembered: more than ever live at a time."""


@dataclass(slots=True)
class _Entry:
    sampler: SamplerKey
    ticket: Ticket
    withdrawn: bool = False


class Roster:
    """See the module.

    Args:
        engine: Whose renders these are.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._entries: dict[CallTag, _Entry] = {}
        self._latest: dict[str, int] = {}
        self._nameless = itertools.count()
        self._cached: frozenset[Key] = frozenset()
        self._voices: frozenset[str] = frozenset()

    def arrived(self, tag: CallTag | None) -> CallTag:
        """Note a call before the engine accepts or refuses it. Calls that no router of ours made get a tag here."""
        if tag is None:
            return CallTag("", next(self._nameless))
        latest = max(tag.number, self._latest.pop(tag.router, -1))
        self._latest[tag.router] = latest
        if len(self._latest) > _MOST_ROUTERS:
            del self._latest[next(iter(self._latest))]
        return tag

    @contextmanager
    def inside(self, tag: CallTag, request: SynthRequest, ticket: Ticket) -> Iterator[None]:
        """Keep a render on the roster while its reply is listened to.

        Raises:
            Withdrawn: It was given back while it waited.
        """
        entry = self._entries[tag] = _Entry(Wish.of(request).sampler, ticket)
        try:
            yield
        except Cancelled as error:
            if entry.withdrawn:
                raise Withdrawn("taken back from the queue of a replica") from error
            raise
        finally:
            if self._entries.get(tag) is entry:
                del self._entries[tag]

    def withdraw(self, tags: Sequence[CallTag]) -> list[bool]:
        """Give renders back that still wait for a slot.

        Returns:
            For each whether it was given back; its call then ends with :class:`Withdrawn`. Any other goes on here,
            has ended, or was never here.
        """
        given = []
        for tag in tags:
            entry = self._entries.get(tag)
            if entry is not None:
                entry.withdrawn = entry.ticket.withdraw()
            given.append(entry is not None and entry.withdrawn)
        return given

    def report(self) -> Report:
        """The engine at this moment."""
        seats: Counter[tuple[str, SamplerKey]] = Counter()
        queue: list[Waiter] = []
        for tag, entry in self._entries.items():
            if entry.withdrawn:
                continue
            if entry.ticket.waiting:
                queue.append(Waiter(tag, entry.sampler))
            else:
                seats[tag.router, entry.sampler] += 1
        cached = self._engine.record.cached
        if cached is not self._cached:
            self._cached = cached
            # Sorted, so that a cache larger than the report is always shown in the same part.
            self._voices = frozenset(sorted({voice_key(digest) for digest, _ in cached})[:_MOST_VOICES])
        return Report(
            seats=tuple(Seats(router, sampler, count) for (router, sampler), count in seats.items()),
            queue=tuple(queue),
            latest=dict(self._latest),
            voices=self._voices,
            held=self._engine.record.snapshot().batch.held,
        )
