"""What a replica reports, and how it gives waiting renders back: on a real engine with the fake model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.slot_model import make_fake_model
from voxr_ray.config import Settings
from voxr_ray.errors import Cancelled, Overloaded
from voxr_ray.messages import Reference, SynthRequest
from voxr_ray.serve.replica import Replica
from voxr_ray.serve.routing.values import (
    CallTag,
    ReplicaName,
    Report,
    SamplerKey,
    Seats,
    Waiter,
    Wish,
    Withdrawn,
    voice_key,
)
from voxr_ray.serve.values import Beat

SAMPLER, OTHER = SamplerKey(2.0, 10), SamplerKey(3.0, 10)
HERE = ReplicaName("here")


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    """One slot, one place in the queue."""
    chosen = Settings.load({"device": "cpu", "max_batch": 1, "max_queue": 1, "voices_dir": str(tmp_path)}, {})
    replica = Replica(chosen, partial(make_fake_model, delays={"step": 0.001}))
    yield replica
    replica.__del__()


def request(patches: str = "never", **fields: Any) -> SynthRequest:
    return SynthRequest(text="a long text " * 30 + f"@patches={patches}@", retry_badcase=False, seed=1, **fields)


async def report(replica: Replica, condition: Callable[[Report], bool]) -> Report:
    while True:
        found = Report.from_stats(json.loads(json.dumps(await replica.record_routing_stats())))
        assert found is not None
        if condition(found):
            return found
        await asyncio.sleep(0.002)


async def read(replica: Replica, request: SynthRequest, tag: CallTag | None = None) -> int:
    items = [item async for item in replica.synthesize_stream(request, tag=tag)]
    return sum(len(item.samples) for item in items if not isinstance(item, Beat))


async def leave(*calls: asyncio.Task[int]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_report_names_who_runs_and_who_waits(replica: Replica) -> None:
    assert await report(replica, lambda _: True) == Report()
    running = asyncio.create_task(read(replica, request(), CallTag("a", 3)))
    await report(replica, lambda found: found.seats == (Seats("a", SAMPLER, 1),))
    waiting = asyncio.create_task(read(replica, request(cfg_value=3.0), CallTag("b", 8)))
    found = await report(replica, lambda found: found.held == 1)
    assert found.queue == (Waiter(CallTag("b", 8), OTHER),)
    with pytest.raises(Overloaded):
        await read(replica, request(), CallTag("b", 9))
    await leave(running, waiting)
    found = await report(replica, lambda found: not found.seats and not found.queue)
    assert found.latest == {"a": 3, "b": 9}, "refused calls have arrived, too"


async def test_calls_of_nobody_are_reported_as_such(replica: Replica) -> None:
    running = asyncio.create_task(read(replica, request()))
    await report(replica, lambda found: found.seats == (Seats("", SAMPLER, 1),))
    await leave(running)
    assert (await report(replica, lambda found: not found.seats)).latest == {}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_waiting_render_is_given_back(replica: Replica, stream: bool) -> None:
    running = asyncio.create_task(read(replica, request(), CallTag("a", 0)))
    await report(replica, lambda found: bool(found.seats))
    method = replica.synthesize_stream if stream else replica.synthesize_pieces

    async def wait() -> None:
        async for item in method(request(), tag=CallTag("a", 1)):
            assert isinstance(item, Beat), "it cannot have audio"

    waiting = asyncio.create_task(wait())
    await report(replica, lambda found: bool(found.queue))
    tags = [CallTag("a", 0), CallTag("a", 1), CallTag("a", 2)]
    assert await replica.withdraw(HERE, tags) == [False, True, False]
    with pytest.raises(Withdrawn):
        await waiting
    assert not running.done(), "what has a slot goes on"
    assert not (await report(replica, lambda _: True)).queue
    await leave(running)


async def test_one_who_leaves_is_not_told_of_withdrawals(replica: Replica) -> None:
    running = asyncio.create_task(read(replica, request(), CallTag("a", 0)))
    await report(replica, lambda found: bool(found.seats))
    await leave(running)
    assert running.cancelled()
    assert await replica.withdraw(HERE, [CallTag("a", 0)]) == [False]


async def test_cached_voices_are_reported_by_short_keys(replica: Replica) -> None:
    rate_hz = (await replica.info()).spec.input_sample_rate_hz
    reference = Reference.of_clip(np.arange(rate_hz // 4, dtype=np.int16), rate_hz)
    await read(replica, request("3", reference=reference))
    found = await report(replica, lambda found: bool(found.voices))
    assert found.voices == Wish.of(request(reference=reference)).voices == {voice_key(reference.digest)}


KEYS = st.builds(SamplerKey, st.floats(0, 10), st.integers(2, 100))
TAGS = st.builds(CallTag, st.text(max_size=8), st.integers(0, 2**40))


@settings(max_examples=30)
@given(
    st.builds(
        Report,
        seats=st.lists(st.builds(Seats, st.text(max_size=8), KEYS, st.integers(1, 99)), max_size=4).map(tuple),
        queue=st.lists(st.builds(Waiter, TAGS, KEYS), max_size=4).map(tuple),
        latest=st.dictionaries(st.text(max_size=8), st.integers(0, 2**40), max_size=3),
        voices=st.frozensets(st.text(max_size=12), max_size=4),
        held=st.integers(0, 99),
    )
)
def test_a_report_survives_its_way(report: Report) -> None:
    assert Report.from_stats(json.loads(json.dumps(report.to_stats()))) == report


@pytest.mark.parametrize("stats", [{}, {"seats": 3}, {"held": 1}, {"seats": [[1]], "queue": [], "latest": {}}])
def test_reports_of_other_versions_are_left_alone(stats: dict[str, Any]) -> None:
    assert Report.from_stats(stats) is None


def test_a_withdrawal_is_a_kind_of_leaving() -> None:
    assert issubclass(Withdrawn, Cancelled), "engines count it as cancelled"
