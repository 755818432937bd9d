"""Every metric this server exports: its name, kind, labels and meaning. Pure data; imports nothing of Ray.

Ray puts ``ray_`` before a name, and Prometheus' conventions add ``_total`` to counters and ``_bucket``, ``_sum`` and
``_count`` to histograms. Serve adds the labels ``application``, ``deployment`` and ``replica`` to each series. One
series exists for each process, so queries sum over them.

Dashboard, alerts and documentation are held to this table by a test, and the table to a running cluster by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """How a metric counts."""

    COUNTER = "counter"
    """Only grows; its rate is what matters."""
    GAUGE = "gauge"
    """The state now."""
    HISTOGRAM = "histogram"
    """How values are spread."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As the code knows it.
        kind: How it counts.
        help: What it says, in its unit.
        labels: Names of its own labels; few values each, for every combination is a series.
        boundaries: Upper ends of a histogram's buckets.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()

    @property
    def exported(self) -> tuple[str, ...]:
        """Names of its series on a scrape."""
        suffixes = {
            MetricKind.COUNTER: ("_total",),
            MetricKind.GAUGE: ("",),
            MetricKind.HISTOGRAM: ("_bucket", "_sum", "_count"),
        }[self.kind]
        return tuple(f"ray_{self.name}{suffix}" for suffix in suffixes)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, text, labels)


def _histogram(name: str, text: str, boundaries: Sequence[float], *labels: str) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, text, labels, tuple(boundaries))


_FIRST_AUDIO_S = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_FACTORS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5, 10)
_STEP_S = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.16, 0.25, 0.5, 1, 2, 5)

ENGINE_METRICS = (
    _gauge("voxr_engine_slots", "Slots: requests that can be rendered together."),
    _gauge("voxr_engine_rows", "Slots with a seated request."),
    _gauge("voxr_engine_occupancy", "Seated rows as a share of the slots, 0 to 1."),
    _gauge("voxr_engine_width", "Lanes the latest step computed; 0 without rows."),
    _gauge("voxr_engine_seatings", "Slots reserved for requests under preparation."),
    _gauge("voxr_engine_renders", "Requests inside, seated or not."),
    _gauge("voxr_engine_queue", "Requests that wait for a slot."),
    _gauge("voxr_engine_held", "Those of them that wait because the batch runs another sampler."),
    _gauge("voxr_engine_encodes_waiting", "Recordings that wait to be encoded."),
    _gauge("voxr_engine_samplers", "Samplers wanted now: the one that runs, and another one that waits."),
    _gauge("voxr_engine_cache_entries", "Recordings whose features are cached."),
    _gauge("voxr_engine_cache_bytes", "Bytes of cached features."),
    _counter("voxr_engine_submitted", "Renders and encodes that entered."),
    _counter("voxr_engine_refused", "Those that did not, by class of the error.", "error"),
    _counter("voxr_engine_seated", "Takes that got a slot."),
    _counter("voxr_engine_retakes", "Bad takes that were rendered again."),
    _counter("voxr_engine_finished", "Renders that are complete, by the reason their take stopped.", "reason"),
    _counter("voxr_engine_encodes", "Encodes that are complete."),
    _counter("voxr_engine_cancelled", "Renders and encodes whose caller left."),
    _counter("voxr_engine_failed", "Renders and encodes that failed, by class of the error.", "error"),
    _counter("voxr_engine_steps", "Batched steps."),
    _counter("voxr_engine_patches", "Patches drawn: one for each row of each step."),
    _counter("voxr_engine_lanes", "Lanes computed, with those that no row sat in."),
    _counter("voxr_engine_pieces", "Pieces of prefill and encode work between steps."),
    _counter("voxr_engine_sampler_changes", "Steps whose sampler is another one than the step's before."),
    _counter("voxr_engine_cache_hits", "Recordings whose features were cached."),
    _counter("voxr_engine_cache_misses", "Recordings whose features had to be made."),
    _counter("voxr_engine_cache_evictions", "Features dropped for want of room."),
    _histogram("voxr_engine_step_seconds", "Seconds of a step in the model.", _STEP_S),
    _histogram("voxr_engine_decode_seconds", "Seconds of the decodes after a step.", _STEP_S),
    _histogram("voxr_engine_gap_seconds", "Seconds that running rows waited between two steps.", _STEP_S),
)
"""Fed by a replica from its engine's record."""

ROUTER_METRICS = (
    _gauge("voxr_renders_running", "Renders under way, by how their audio is taken.", "kind"),
    _gauge("voxr_samplers_running", "Different samplers among them."),
    _counter("voxr_renders", "Renders that ended, by how and why.", "kind", "outcome", "error"),
    _counter("voxr_audio_seconds", "Seconds of audio handed out.", "kind"),
    _histogram(
        "voxr_first_audio_seconds",
        "Seconds from the request to its first audio; of whole answers, to all of it.",
        _FIRST_AUDIO_S,
        "kind",
    ),
    _histogram(
        "voxr_real_time_factor",
        "Seconds waited for audio, over the seconds of that audio; of served renders.",
        _FACTORS,
        "kind",
    ),
    _counter("voxr_http_errors", "Answers over HTTP that were errors.", "status", "code"),
    _counter("voxr_broken_streams", "Streams that broke after their first byte.", "code"),
    _counter("voxr_retries", "Calls made again on another replica before any audio."),
    _counter("voxr_resumed_streams", "Streams that another replica went on with."),
)
"""Fed by a router."""

ALL_METRICS = ENGINE_METRICS + ROUTER_METRICS
