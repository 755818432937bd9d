"""How fast slots free up, to tell a refused caller when to come back."""

from __future__ import annotations


class Pace:
    """A running mean of how long a job keeps its slot. Guarded by its user's lock.

    Service times, not the gaps between departures, because idle stretches would stretch the gaps.

    Args:
        width: Slots that free up independently.
    """

    _WEIGHT = 0.2
    _LEAST_S = 1.0
    _MOST_S = 30.0

    def __init__(self, width: int) -> None:
        self._width = width
        self._service_s: float | None = None

    def served(self, seconds: float) -> None:
        """Note that a slot was freed after so many seconds of work."""
        before = seconds if self._service_s is None else self._service_s
        self._service_s = before + self._WEIGHT * (seconds - before)

    def retry_after_s(self, waiting: int) -> float:
        """Seconds until half of ``waiting`` jobs will have found a slot: by then there is room again.

        Bounded, because the estimate is rough: soon enough to use a free server, rare enough not to flood it.
        """
        service_s = self._LEAST_S if self._service_s is None else self._service_s
        seconds = service_s / self._width * max(1, waiting / 2)
        return min(max(seconds, self._LEAST_S), self._MOST_S)
