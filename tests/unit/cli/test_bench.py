"""``voxr-ray bench`` against a real server on the fake model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.command import ok, run
from tests.unit.serve.local import LocalServer


def test_every_user_is_heard(served: tuple[str, LocalServer], tmp_path: Path) -> None:
    url, local = served

    def served_so_far() -> int:
        return sum(local.replica._engine.snapshot().record.counts.finished.values())

    before = served_so_far()
    result = ok("bench", url, "-u", 1, "-u", 3, "-n", 2, "--json", tmp_path / "bench.json")
    assert "first audio p95, ms" in result.stdout
    one, three = json.loads((tmp_path / "bench.json").read_text())["lines"]
    assert (one["users"], one["requests"], one["failed"]) == (1, 2, 0)
    assert (three["users"], three["requests"], three["failed"]) == (3, 6, 0)
    assert one["audio s/s"] > 0
    assert served_so_far() - before == 1 + 2 + 6


def test_failures_count(url: str) -> None:
    result = run("bench", url, "-u", 1, "-n", 1, "--fields", '{"voice": "zoe"}')
    assert result.exit_code == 1
    assert "no voice is named 'zoe'" in result.stderr
    assert run("bench", url, "--fields", "[]").exit_code == 2
    assert run("bench", "http://127.0.0.1:9").exit_code == 1
