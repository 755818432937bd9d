"""Medians, and the Markdown tables that measurements are shown in."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def quantile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Iterable[float]) -> float:
    """The median; NaN of nothing."""
    kept = list(values)
    return statistics.median(kept) if kept else float("nan")


def cell(value: Any) -> str:
    """A number with three significant digits, anything else as it is."""
    if isinstance(value, float):
        return "–" if value != value else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; the first line's keys are the header."""
    if not lines:
        return "(nothing measured)"
    names = list(lines[0])
    rows = [[cell(line.get(name, "–")) for name in names] for line in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in [names, ["---"] * len(names), *rows])
