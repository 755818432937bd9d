"""What every benchmark prints and writes: medians, Markdown tables, and JSON that says where it was measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
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


def machine() -> dict[str, Any]:
    """Where and with what: without it a number means nothing."""
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    for package in ("torch", "ray", "voxr_ray"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def report(title: str, lines: Sequence[Mapping[str, Any]], path: Path | None, **facts: Any) -> None:
    """Print a table under its title, and write it with the machine's facts where the caller asked."""
    here = machine()
    print(f"\n{title}\n{here['processor']}, {here['cpus']} CPUs, load {here['load']}, {here['date']}\n")
    print(table(lines))
    if path is not None:
        content = {"title": title, "machine": here, **facts, "lines": list(lines)}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
