"""Three replicas behind Serve: samplers keep apart, waiting renders move, and nobody is refused beside free room."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.server import WAIT_S, Server, idle
from voxr_ray.errors import Overloaded
from voxr_ray.messages import SynthRequest

REPLICAS, WIDTH, QUEUE = 3, 2, 2
REPORT_S = 0.25
ENDLESS = "a text that would take very long to speak " * 20 + "@patches=never@"


@pytest.fixture(scope="module")
def fleet(deploy: Any) -> Any:
    """Three replicas of two slots and two places in the queue."""
    return deploy("fleet", model={"delays": {"step": 0.01}}, num_replicas=REPLICAS, max_batch=WIDTH, max_queue=QUEUE,
                  retry_badcase=False)  # fmt: skip


def records(fleet: Server) -> list[Any]:
    found: list[Any] = fleet.replica.broadcast("engine_record").results(timeout_s=WAIT_S)
    return found


def steps(fleet: Server) -> list[Any]:
    """The steps of all replicas."""
    found = fleet.replica.broadcast("engine_steps").results(timeout_s=WAIT_S)
    return [step for replica in found for step in replica]


async def wait_for(fleet: Server, condition: Callable[[list[Any]], bool]) -> list[Any]:
    until = time.monotonic() + WAIT_S
    while not condition(found := await asyncio.to_thread(records, fleet)):
        assert time.monotonic() < until, f"the engines never got there: {found}"
        await asyncio.sleep(0.02)
    return found


async def quiet(fleet: Server) -> list[Any]:
    return await wait_for(fleet, lambda found: len(found) == REPLICAS and all(idle(each) for each in found))


def request(text: str, cfg_value: float = 2.0, **fields: Any) -> SynthRequest:
    return SynthRequest(text=text, cfg_value=cfg_value, seed=1, retry_badcase=False, **fields)


async def speak(fleet: Server, text: str, cfg_value: float) -> Any:
    return await fleet.handle.synthesize.remote(request(text, cfg_value))


async def start(fleet: Server, cfg_value: float) -> Any:
    """A stream that does not end by itself, past its first audio."""
    chunks = fleet.handle.options(stream=True).synthesize_stream.remote(request(ENDLESS, cfg_value))
    assert (await anext(chunks)).index == 0
    return chunks


async def test_as_many_samplers_as_replicas_never_hold_each_other_up(fleet: Server) -> None:
    samplers = [1.0, 2.0, 3.0]

    async def user(cfg_value: float, number: int) -> None:
        for turn in range(6):
            await speak(fleet, f"user {number} says @patches={4 + (number + turn) % 5}@", cfg_value)

    await quiet(fleet)
    for cfg_value in samplers:
        await speak(fleet, "warm up @patches=2@", cfg_value)
    before = sum(each.record.counts.seated for each in await quiet(fleet))
    await asyncio.gather(*(user(cfg_value, n) for n, cfg_value in enumerate(samplers * WIDTH)))
    after = sum(each.record.counts.seated for each in await quiet(fleet))
    assert after - before == 6 * WIDTH * len(samplers)
    done = await asyncio.to_thread(steps, fleet)
    assert sum(step.held for step in done) == 0
    assert max(len(step.slots) for step in done) == WIDTH, "those of one sampler share a batch"


async def test_a_render_that_waits_moves_to_a_replica_that_idles(fleet: Server) -> None:
    """Every replica is taken, with one render of another sampler held at each. One replica gets free: it serves all."""
    await quiet(fleet)
    running = [await start(fleet, 1.0) for _ in range(REPLICAS * WIDTH)]
    try:
        await wait_for(fleet, lambda found: all(each.record.batch.rows == WIDTH for each in found))
        held = [asyncio.create_task(speak(fleet, "held @patches=4@", cfg_value)) for cfg_value in (4.0, 5.0, 6.0)]
        await wait_for(fleet, lambda found: sum(each.record.batch.held for each in found) == 3)
        # Streams fill one replica after the other, so the first two share one.
        for chunks in running[:WIDTH]:
            chunks.cancel()
        results = await asyncio.gather(*held)
        assert [result.summary.patches for result in results] == [4, 4, 4]
        busy = [each for each in await asyncio.to_thread(records, fleet) if each.record.batch.rows]
        assert [each.record.batch.rows for each in busy] == [WIDTH] * (REPLICAS - 1), "the others ran on"
    finally:
        for chunks in running:
            chunks.cancel()
    await quiet(fleet)


async def test_nobody_is_refused_while_any_replica_has_room(fleet: Server) -> None:
    room = REPLICAS * (WIDTH + QUEUE)
    before = await quiet(fleet)
    running = [await start(fleet, 1.0) for _ in range(REPLICAS * WIDTH)]
    try:
        waiting = [
            asyncio.create_task(speak(fleet, "one of many @patches=4@", 1.0 + n % 4))
            for n in range(room - len(running))
        ]
        await wait_for(fleet, lambda found: sum(each.load.renders for each in found) == room)
        with pytest.raises(Overloaded):
            await speak(fleet, "one too many", 1.0)
        for chunks in running:
            chunks.cancel()
        assert len(await asyncio.gather(*waiting)) == room - len(running)
    finally:
        for chunks in running:
            chunks.cancel()
    after = await quiet(fleet)
    refused = [sum(each.record.counts.refused.get("Overloaded", 0) for each in found) for found in (before, after)]
    assert refused[1] - refused[0] == 1, "one call too many, one refusal"


@pytest.fixture(scope="module")
def pair(deploy: Any) -> Any:
    """Two routers that never talk, and three replicas."""
    return deploy("pair", model={"delays": {"step": 0.01}}, num_replicas=REPLICAS, max_batch=WIDTH, max_queue=QUEUE,
                 router_replicas=2, retry_badcase=False, routing_report_period_s=REPORT_S)  # fmt: skip


@pytest.mark.slow
async def test_routers_choose_the_same_idle_replica_for_a_sampler(pair: Server) -> None:
    """With every replica idle, each of twelve requests could go anywhere; nobody told the routers of each other's."""
    samplers = [1.0, 2.0, 3.0]
    for cfg_value in samplers * 4:
        await quiet(pair)
        await asyncio.sleep(2 * REPORT_S)  # what routers know is at most that old; nothing tells who has heard what
        await speak(pair, "alone in the fleet @patches=2@", cfg_value)
    await quiet(pair)
    found = await asyncio.to_thread(pair.replica.broadcast("engine_steps").results, timeout_s=WAIT_S)
    shares = [[sum(step.sampler.cfg_value == each for step in replica) for replica in found] for each in samplers]
    total, together = sum(map(sum, shares)), sum(map(max, shares))
    assert total - together <= total / 12, f"more than one render went astray, for a report that came late: {shares}"


@pytest.mark.slow
async def test_two_routers_keep_samplers_apart_under_load(pair: Server) -> None:
    """What one router has sent the other learns of from reports a moment later: nobody is lost, and few are held.

    Renders take longer than reports do to arrive, as real ones do: of shorter ones a report would tell nothing.
    """
    calls = [(1.0 + n % 2, f"call {n} @patches={8 + n % 5}@ @sleep=step:0.04@") for n in range(40)]
    places = asyncio.Semaphore(REPLICAS * WIDTH - WIDTH)

    async def user(cfg_value: float, text: str) -> int:
        async with places:
            return int((await speak(pair, text, cfg_value)).summary.patches)

    patches = await asyncio.gather(*(user(*call) for call in calls))
    assert patches == [8 + n % 5 for n in range(40)]
    await quiet(pair)
    done = await asyncio.to_thread(steps, pair)
    held = sum(step.held for step in done)
    rows = sum(len(step.slots) for step in done)
    assert held < rows / 4, f"{held} waits for another sampler's batch in {rows} steps of rows"
