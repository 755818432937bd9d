"""What routers and replicas tell each other for the sake of routing. Values; no thread owns them.

A report travels as plain lists in Serve's routing statistics, which pass through the controller to every router. It
says nothing that changes by itself: Serve sends it on only when it differs from the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from voxr_ray.errors import Cancelled
from voxr_ray.messages import SynthRequest

MOST_REFUSALS = 8
"""Replicas that may refuse a render before its caller is told that all are full."""

_KEY_CHARS = 12
"""Characters of a digest in a report: 48 bits, and a collision costs one encode."""


class Withdrawn(Cancelled):
    """A replica gave a waiting render back, to be sent to another. Routers send it there; no caller sees it."""


class SamplerKey(NamedTuple):
    """A :class:`~voxr_ray.messages.Sampler` as routing compares it, often and therefore as a tuple."""

    cfg_value: float
    inference_timesteps: int


class ReplicaName(str):
    """A replica's unique id. As the first argument of a call it sends that call to this replica."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class CallTag:
    """Names a call among all calls of all routers.

    Attributes:
        router: The router that makes it.
        number: Its number there; later calls have higher ones.
    """

    router: str
    number: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs of a replica.

    Attributes:
        sampler: What the rows of its batch must share with it.
        voices: Short keys of the recordings that a replica would have to encode for it.
    """

    sampler: SamplerKey
    voices: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: SynthRequest) -> Self:
        """The wish of a request. Recordings that bring their features need no cache."""
        recordings = [each for each in (request.reference, request.prompt) if each is not None]
        sampler = SamplerKey(request.cfg_value, request.inference_timesteps)
        return cls(sampler, frozenset(voice_key(each.digest) for each in recordings if each.features is None))


def voice_key(digest: str) -> str:
    """A digest as reports name it."""
    return digest[:_KEY_CHARS]


@dataclass(frozen=True, slots=True)
class Waiter:
    """A call without a slot, as a report names it."""

    tag: CallTag
    sampler: SamplerKey


@dataclass(frozen=True, slots=True)
class Seats:
    """How many calls of one router occupy slots."""

    router: str
    sampler: SamplerKey
    count: int


@dataclass(frozen=True, slots=True)
class Report:
    """An engine at a moment.

    Attributes:
        seats: Calls with a slot, by router and sampler.
        queue: Calls without one, oldest first.
        latest: For every router, the highest number of a call that has arrived.
        voices: Short keys of recordings whose features are cached.
        held: Waiting calls that need another sampler than the running one, and those behind them.
    """

    seats: tuple[Seats, ...] = ()
    queue: tuple[Waiter, ...] = ()
    latest: Mapping[str, int] = field(default_factory=dict)
    voices: frozenset[str] = frozenset()
    held: int = 0

    def to_stats(self) -> dict[str, Any]:
        """As Serve's routing statistics: only what JSON knows."""
        return {
            "seats": [[each.router, *each.sampler, each.count] for each in self.seats],
            "queue": [[each.tag.router, each.tag.number, *each.sampler] for each in self.queue],
            "latest": dict(self.latest),
            "voices": sorted(self.voices),
            "held": self.held,
        }

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any]) -> Self | None:
        """The report in a replica's routing statistics.

        Returns:
            ``None`` before the first one, and for one that another version of this code made: during an upgrade both
            run, and a router that knows less than it could still routes.
        """
        try:
            return cls._read(stats) if stats else None
        except (KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _read(cls, stats: Mapping[str, Any]) -> Self:
        return cls(
            seats=tuple(Seats(router, SamplerKey(cfg, steps), count) for router, cfg, steps, count in stats["seats"]),
            queue=tuple(
                Waiter(CallTag(router, number), SamplerKey(cfg, steps)) for router, number, cfg, steps in stats["queue"]
            ),
            latest=dict(stats["latest"]),
            voices=frozenset(stats["voices"]),
            held=stats["held"],
        )
