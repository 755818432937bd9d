"""What every benchmark prints and writes: a Markdown table, and JSON that says where it was measured."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from voxr_ray.cli.tables import table


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
