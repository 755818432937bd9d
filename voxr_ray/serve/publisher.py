"""A thread that publishes an engine's state as metrics, for as long as its replica lives."""

from __future__ import annotations

import logging
import threading

from voxr_ray.engine.engine import Engine
from voxr_ray.serve.metrics import EngineMetrics

_log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Ray collects metrics every ten seconds; the record remembers more steps than an engine does in one."""


class Publisher:
    """Publishes once a period, and once more at the end.

    A thread of its own, so that metrics go on while the replica's event loop is busy.

    Args:
        engine: Whose state it is.
        metrics: Where it goes.
        period_s: Seconds between two publications.
    """

    def __init__(self, engine: Engine, metrics: EngineMetrics, period_s: float = PERIOD_S) -> None:
        self._engine = engine
        self._metrics = metrics
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
            self._metrics.publish(self._engine.snapshot(), self._engine.record.steps())
        except Exception:  # noqa: BLE001  (a fault in the metrics must cost metrics only, and one period of them)
            _log.exception("metrics could not be published")
