"""The soak runs, short, on the session's cluster: nothing is left behind by crowds of callers of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.soak_server import Server as Soaked
from tests.serve.server import Server


@pytest.fixture(scope="module")
def soaked(deploy: Callable[..., Server], ray_folder: Path) -> Soaked:
    """Sixteen slots and a queue of sixteen."""
    server = deploy("soak", model={"delays": {"step": 0.005}}, max_batch=16, max_queue=16)
    return Soaked(server.url, server.replica, fake=True, width=16, queue=16, folder=ray_folder)


@pytest.mark.slow
def test_five_hundred_callers_of_every_kind(soaked: Soaked) -> None:
    verdict = asyncio.run(soak.leavers(soaked, 500, 64))
    assert verdict.faults == []
    assert verdict.figures["left late"] > 50
    assert verdict.figures["left early"] > 50


@pytest.mark.slow
def test_four_hundred_at_once_of_whom_half_leave(soaked: Soaked) -> None:
    assert asyncio.run(soak.leavers(soaked, 400, 400, seed=1)).faults == []


@pytest.mark.slow
def test_three_times_more_than_there_is_room_for(soaked: Soaked) -> None:
    verdict = asyncio.run(soak.overload(soaked))
    assert verdict.faults == []
    assert verdict.figures["refused"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_short_streams_leave_no_memory_behind(soaked: Soaked) -> None:
    """Fewer streams than ``benchmarks/soak.py`` runs, so a larger share for what any process gathers at first."""
    assert asyncio.run(soak.memory(soaked, 1000, 32, limit=0.1)).faults == []
