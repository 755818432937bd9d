"""Memory: many short requests leave nothing behind, and the table of parts is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import memory
from tests.checkpoints import variant_config, write_checkpoint
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.options import EngineOptions
from voxr_ray.voxcpm2.loader import load_slot_model

MIB = 2**20

LEFT_BYTES = 4096
"""Resident bytes a request may leave: a fragment of the heap. Its audio alone is several times that."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "small", variant_config("long_rope_rate_bins"))


def test_every_part_is_measured(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(memory, "checkpoint", lambda size: folder)
    lines = {line["part"]: line for line in memory.measure("small", device="cpu", dtype="auto", width=4, capacity=1024)}
    assert len(lines) == 9
    exact = next(line for part, line in lines.items() if part.startswith("keys and values"))
    assert exact["ratio"] == 1
    used = next(line for part, line in lines.items() if part.startswith("512 positions"))
    assert 0.9 < used["ratio"] < 1.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_short_requests_leave_no_memory_behind(folder: Path) -> None:
    """After the first half, in which pools, caches and records fill, a request leaves less than its audio by far."""
    count = 2000
    options = EngineOptions(max_batch=8, max_queue=64, continuous_capacity=256, reference_cache_bytes=1 << 20)
    with Engine(lambda: load_slot_model(str(folder), device="cpu", threads=1), options) as engine:
        looks = memory.churn(engine, count, in_flight=16)
        assert engine.snapshot().load.renders == 0
    assert looks[-1] - looks[3] < count // 2 * LEFT_BYTES, [look // MIB for look in looks]
