"""How far long work is, as lines of the log: for replicas and services, which no terminal shows a bar of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Seconds between two lines. What takes less says nothing."""


class Progress:
    """Counts bytes, and says now and then how many there are. One thread at a time.

    Args:
        what: What is done with them, as the line begins.
        total: How many there will be, if that is known; it may be set later.
        clock: Monotonic seconds.
    """

    def __init__(self, what: str, total: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.what = what
        self.total = total
        self._clock = clock
        self._done = 0
        self._begun_s = self._told_s = clock()

    def add(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        now_s = self._clock()
        if now_s - self._told_s < PERIOD_S:
            return
        self._told_s = now_s
        mib, rate = self._done / 2**20, self._done / 2**20 / (now_s - self._begun_s)
        if self.total:
            share = min(100, 100 * self._done // self.total)
            _log.info("%s: %d %%, %.0f of %.0f MiB, %.1f MiB/s", self.what, share, mib, self.total / 2**20, rate)
        else:
            _log.info("%s: %.0f MiB, %.1f MiB/s", self.what, mib, rate)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._begun_s
