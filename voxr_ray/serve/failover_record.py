"""What failover did, counted in one place. Written and read on a router's event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from voxr_ray.errors import VoxrError


@dataclass(frozen=True, slots=True)
class FailoverCounts:
    """Totals since the router's start; none ever falls.

    Attributes:
        lost: Calls whose replica was lost, by the class of the error.
        retried: Calls made again whose caller had no audio yet.
        resumed: Answers that went on on another replica.
        recovered: Renders that were moved, once or more, and completed.
        given_up: Calls for which there was no further attempt.
    """

    lost: Mapping[str, int]
    retried: int
    resumed: int
    recovered: int
    given_up: int


class FailoverListener(Protocol):
    """Is told of every call that is made again; the router's metrics are one."""

    def retried(self) -> None:
        """A call whose caller had no audio yet is made again."""

    def resumed(self) -> None:
        """An answer goes on on another replica."""


class FailoverRecord:
    """See the module.

    Args:
        listener: Hears of it, too.
    """

    def __init__(self, listener: FailoverListener) -> None:
        self._listener = listener
        self._lost: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    def lost(self, error: VoxrError) -> None:
        """Count a call whose replica was lost."""
        self._lost[type(error).__name__] += 1

    def moved(self, *, resumed: bool) -> None:
        """Count a call that is made again.

        Args:
            resumed: Whether its caller has audio already.
        """
        self._totals["resumed" if resumed else "retried"] += 1
        if resumed:
            self._listener.resumed()
        else:
            self._listener.retried()

    def recovered(self) -> None:
        """Count a render that was moved and is complete."""
        self._totals["recovered"] += 1

    def given_up(self) -> None:
        """Count a call for which there is no further attempt."""
        self._totals["given_up"] += 1

    def snapshot(self) -> FailoverCounts:
        """A copy. Picklable."""
        totals = self._totals
        return FailoverCounts(
            dict(self._lost), totals["retried"], totals["resumed"], totals["recovered"], totals["given_up"]
        )
