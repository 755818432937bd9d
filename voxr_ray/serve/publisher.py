"""A thread that publishes metrics once a second, for as long as the replica or router lives.

Not only on a change: Ray forgets the value of a gauge once it has collected it, so a state that is not published again
is gone from the next scrape.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Ray collects metrics every ten seconds; the record remembers more steps than an engine does in one."""


class Publisher:
    """Publishes once a period, and once more at the end.

    A thread of its own, so that metrics go on while the event loop is busy.

    Args:
        publish: Publishes the state of now; runs on the thread.
        period_s: Seconds between two publications.
    """

    def __init__(self, publish: Callable[[], None], period_s: float = PERIOD_S) -> None:
        self._work = publish
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="voxr-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Publish for the last time and end the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            self._publish()
        self._publish()

    def _publish(self) -> None:
        try:
            self._work()
        except Exception:  # noqa: BLE001  (a fault in the metrics must cost metrics only, and one period of them)
            _log.exception("metrics could not be published")
