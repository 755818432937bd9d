"""A sink of metrics that remembers. It refuses what Ray would only drop: unknown names, wrong labels, wrong kinds."""

from __future__ import annotations

from collections import defaultdict

from voxr_ray.serve.metric_names import ALL_METRICS, MetricKind

_BY_NAME = {metric.name: metric for metric in ALL_METRICS}

Series = tuple[str, frozenset[tuple[str, str]]]


class FakeSink:
    """Stands in for :class:`voxr_ray.serve.metrics.RaySink`."""

    def __init__(self) -> None:
        self.totals: dict[Series, float] = defaultdict(float)
        self.gauges: dict[Series, float] = {}
        self.values: dict[Series, list[float]] = defaultdict(list)

    def add(self, name: str, value: float, **labels: str) -> None:
        assert value >= 0, f"{name} is a counter and cannot fall by {-value}"
        self.totals[_series(name, MetricKind.COUNTER, labels)] += value

    def set(self, name: str, value: float, **labels: str) -> None:
        self.gauges[_series(name, MetricKind.GAUGE, labels)] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.values[_series(name, MetricKind.HISTOGRAM, labels)].append(value)

    def total(self, name: str, **labels: str) -> float:
        """A counter, summed over the labels that are not given."""
        wanted = set(labels.items())
        return sum(value for (known, having), value in self.totals.items() if known == name and wanted <= having)

    def observed(self, name: str, **labels: str) -> list[float]:
        """The values of a histogram."""
        return self.values[name, frozenset(labels.items())]

    def gauge(self, name: str, **labels: str) -> float:
        """A gauge."""
        return self.gauges[name, frozenset(labels.items())]


def _series(name: str, kind: MetricKind, labels: dict[str, str]) -> Series:
    metric = _BY_NAME[name]
    assert metric.kind is kind, f"{name} is a {metric.kind}"
    assert set(labels) == set(metric.labels), f"{name} has the labels {metric.labels}"
    assert all(isinstance(value, str) for value in labels.values())
    return name, frozenset((label, str(value)) for label, value in labels.items())
