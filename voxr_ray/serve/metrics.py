"""The metric objects of a process, and what feeds them. Any thread; Ray's objects lock for themselves.

State is published as copies (a snapshot of the engine's record, the set of renders under way), never as pairs of plus
and minus: whichever way a caller leaves, the next copy is right. Counters grow by the difference between two copies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, Protocol, Self

from ray.serve.metrics import Counter, Gauge, Histogram

from voxr_ray.engine.record import StepRecord
from voxr_ray.engine.ticket import EngineSnapshot
from voxr_ray.errors import Cancelled, Overloaded, RequestError, VoxrError
from voxr_ray.messages import SynthRequest
from voxr_ray.serve.metric_names import ENGINE_METRICS, ROUTER_METRICS, Metric, MetricKind

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Where values go. Names and labels are those of :mod:`voxr_ray.serve.metric_names`."""

    def add(self, name: str, value: float, **labels: str) -> None:
        """Let a counter grow; nothing happens at 0."""

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""


class RaySink:
    """Metric objects that Ray exports. In a deployment's constructor or later: only there Serve knows its labels.

    Args:
        metrics: Those it has.
    """

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics: dict[str, Any] = {metric.name: _made(metric) for metric in metrics}

    def add(self, name: str, value: float, **labels: str) -> None:
        """Let a counter grow; nothing happens at 0, which Ray refuses."""
        if value > 0:
            self._metrics[name].inc(value, labels)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._metrics[name].set(value, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self._metrics[name].observe(value, labels)


def _made(metric: Metric) -> Any:
    labels: Any = metric.labels  # Ray's annotation asks for a tuple of one, and means any
    if metric.kind is MetricKind.COUNTER:
        return Counter(metric.name, metric.help, labels)
    if metric.kind is MetricKind.GAUGE:
        return Gauge(metric.name, metric.help, labels)
    return Histogram(metric.name, metric.help, list(metric.boundaries), labels)


class EngineMetrics:
    """Metrics of one engine. One thread at a time.

    Args:
        sink: Where they go; Ray's by default.
    """

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink or RaySink(ENGINE_METRICS)
        self._counted: dict[tuple[str, str, str], float] = {}
        self._latest_step: StepRecord | None = None

    def publish(self, snapshot: EngineSnapshot, steps: Iterable[StepRecord]) -> None:
        """Publish what an engine did since the last call, and its state now.

        Args:
            snapshot: Its counters and batch.
            steps: Its latest steps, oldest first; those already published are passed over.
        """
        self._publish_state(snapshot)
        self._publish_counts(snapshot)
        for step in steps:
            if self._latest_step is None or step.started_s > self._latest_step.started_s:
                self._publish_step(step)

    def _publish_state(self, snapshot: EngineSnapshot) -> None:
        batch, last, put = snapshot.record.batch, snapshot.record.last_step, self._sink.set
        put("voxr_engine_slots", snapshot.width)
        put("voxr_engine_rows", batch.rows)
        put("voxr_engine_occupancy", batch.rows / snapshot.width)
        put("voxr_engine_width", last.width if last is not None and batch.rows else 0)
        put("voxr_engine_seatings", batch.seatings)
        put("voxr_engine_renders", snapshot.load.renders)
        put("voxr_engine_queue", batch.waiting)
        put("voxr_engine_held", batch.held)
        put("voxr_engine_encodes_waiting", batch.encodes)
        put("voxr_engine_samplers", len({batch.sampler, batch.next_sampler} - {None}))
        put("voxr_engine_cache_entries", batch.cache.entries)
        put("voxr_engine_cache_bytes", batch.cache.size_bytes)

    def _publish_counts(self, snapshot: EngineSnapshot) -> None:
        counts, cache = snapshot.record.counts, snapshot.record.batch.cache
        for name in ("submitted", "seated", "retakes", "encodes", "cancelled", "steps", "patches", "pieces"):
            self._count(name, getattr(counts, name))
        for name in ("hits", "misses", "evictions"):
            self._count(f"cache_{name}", getattr(cache, name))
        self._count_each("refused", "error", counts.refused)
        self._count_each("failed", "error", counts.failed)
        self._count_each("finished", "reason", counts.finished)

    def _count_each(self, name: str, label: str, totals: Mapping[str, int]) -> None:
        for value, total in totals.items():
            self._count(name, total, label, value)

    def _count(self, name: str, total: float, label: str = "", value: str = "") -> None:
        key = name, label, value
        grown = total - self._counted.get(key, 0)
        self._counted[key] = total
        self._sink.add(f"voxr_engine_{name}", grown, **({label: value} if label else {}))

    def _publish_step(self, step: StepRecord) -> None:
        before, self._latest_step = self._latest_step, step
        self._sink.observe("voxr_engine_step_seconds", step.step_s)
        self._sink.observe("voxr_engine_decode_seconds", step.decode_s)
        self._sink.observe("voxr_engine_gap_seconds", step.gap_s)
        self._sink.add("voxr_engine_lanes", step.width)
        if before is not None and before.sampler != step.sampler:
            self._sink.add("voxr_engine_sampler_changes", 1)


class RenderKind(StrEnum):
    """How the audio of a render is taken."""

    WHOLE = "whole"
    """All of it at once: files, batches, ``synthesize``."""
    STREAM = "stream"
    """While it is made."""
    SESSION = "session"
    """While it is made, a sentence of a WebSocket session."""


class RouterMetrics:
    """Metrics of one router. Runs on its event loop.

    Args:
        sink: Where they go; Ray's by default.
        clock: Monotonic seconds.
    """

    def __init__(self, sink: Sink | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink or RaySink(ROUTER_METRICS)
        self.clock = clock
        self._running: set[Render] = set()
        self.publish()

    def render(self, kind: RenderKind, request: SynthRequest, begun_s: float | None = None) -> Render:
        """A render about to begin: a context that ends with it, whichever way.

        Args:
            kind: How its audio is taken.
            request: What is rendered.
            begun_s: When its caller asked for it, by ``clock``; now by default.
        """
        return Render(self, kind, request, self.clock() if begun_s is None else begun_s)

    def http_error(self, status: int, code: str) -> None:
        """Count an answer that is an error."""
        self._sink.add("voxr_http_errors", 1, status=str(status), code=code)

    def broken_stream(self, code: str) -> None:
        """Count a stream that broke after its first byte."""
        self._sink.add("voxr_broken_streams", 1, code=code)

    def retried(self) -> None:
        """Count a call that is made again on another replica before any audio."""
        self._sink.add("voxr_retries", 1)

    def resumed(self) -> None:
        """Count a stream that another replica goes on with."""
        self._sink.add("voxr_resumed_streams", 1)

    # ---- for renders ----

    def begun(self, render: Render) -> None:
        """Note that a render runs."""
        self._running.add(render)
        self.publish()

    def audio(self, render: Render, seconds: float, first: bool) -> None:
        """Note audio that a render handed out."""
        self._sink.add("voxr_audio_seconds", seconds, kind=render.kind)
        if first:
            self._sink.observe("voxr_first_audio_seconds", render.first_audio_s or 0.0, kind=render.kind)

    def ended(self, render: Render, outcome: str, error: str) -> None:
        """Note that a render has ended, here and in the log."""
        self._running.discard(render)
        self.publish()
        self._sink.add("voxr_renders", 1, kind=render.kind, outcome=outcome, error=error)
        if outcome == "served" and render.audio_s > 0:
            self._sink.observe("voxr_real_time_factor", render.waited_s / render.audio_s, kind=render.kind)
        _log.info("render %s: %s", outcome, render, extra=render.facts | {"outcome": outcome, "error_class": error})

    def publish(self) -> None:
        """Publish the state of now. Any thread."""
        running = tuple(self._running)  # copied in one go: the event loop may change the set meanwhile
        for kind in RenderKind:
            self._sink.set("voxr_renders_running", sum(each.kind is kind for each in running), kind=kind)
        self._sink.set("voxr_samplers_running", len({each.sampler for each in running}))


class Render:
    """One render, from its request to its end.

    Its time counts only while audio is waited for: a listener who reads as slowly as he hears makes nothing slower.

    Attributes:
        kind: How its audio is taken.
        sampler: What its batch has to run.
        begun_s: When its caller asked for it.
        first_audio_s: Seconds from then to its first audio; ``None`` before it.
        audio_s: Seconds of audio handed out.
        waited_s: Seconds its caller waited for them.
    """

    def __init__(self, metrics: RouterMetrics, kind: RenderKind, request: SynthRequest, begun_s: float) -> None:
        self.kind = kind
        self.sampler = request.sampler
        self.begun_s = begun_s
        self.first_audio_s: float | None = None
        self.audio_s = 0.0
        self.waited_s = 0.0
        self._metrics = metrics
        self._asked_s = begun_s
        self._request_id = request.request_id

    def asked(self) -> None:
        """Note that more audio is waited for from now on."""
        self._asked_s = self._metrics.clock()

    def came(self, samples: int, rate_hz: int) -> None:
        """Note that audio has come."""
        now_s = self._metrics.clock()
        self.waited_s += now_s - self._asked_s
        if samples > 0:
            first = self.first_audio_s is None
            if first:
                self.first_audio_s = now_s - self.begun_s
            self.audio_s += samples / rate_hz
            self._metrics.audio(self, samples / rate_hz, first)

    @property
    def facts(self) -> dict[str, str | float | None]:
        """What a structured log keeps of it. Serve adds the id of a request it knows; others bring their own."""
        found: dict[str, str | float | None] = {
            "render_kind": str(self.kind),
            "audio_s": round(self.audio_s, 3),
            "waited_s": round(self.waited_s, 3),
            "first_audio_s": None if self.first_audio_s is None else round(self.first_audio_s, 3),
        }
        return found | ({"request_id": self._request_id} if self._request_id else {})

    def __str__(self) -> str:
        first = "no audio" if self.first_audio_s is None else f"first audio after {self.first_audio_s:.3f} s"
        return f"{self.kind}, {self.audio_s:.2f} s of audio, {first}"

    def __enter__(self) -> Self:
        self._metrics.begun(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.ended(self, *_outcome(error))


def _outcome(error: BaseException | None) -> tuple[str, str]:
    """What became of a render, and the class of the error if it was one."""
    if error is None:
        return "served", ""
    name = type(error).__name__
    if isinstance(error, GeneratorExit | asyncio.CancelledError | Cancelled):
        return "cancelled", ""
    if isinstance(error, RequestError | Overloaded):
        return "refused", name
    return "failed", name if isinstance(error, VoxrError) else "InternalError"
