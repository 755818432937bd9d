"""Rule 14, B1 and B2: a render does not depend on its neighbours, its slot, or when it joined."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from tests.fakes.driver import Driver, Probe, check_alone, request
from tests.fakes.slot_model import make_fake_model
from voxr_ray.engine.async_reply import AsyncReply
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.options import EngineOptions
from voxr_ray.errors import Cancelled, ModelError, Overloaded
from voxr_ray.messages import Prompt, Reference, SynthRequest, SynthResult

FAST = {"samples_per_patch": 24, "encode_patches_per_piece": 2, "prefill_positions_per_piece": 16}
VOICES = [Reference.of_clip(np.arange(first, first + 900), 16_000) for first in range(1, 4)]


def some_request(rng: random.Random, index: int) -> SynthRequest:
    """Every mode, several samplers, retakes and faults among them."""
    fields: dict[str, Any] = {"cfg_value": rng.choice([1.0, 1.0, 1.0, 2.0, 3.0])}
    if rng.random() < 0.4:
        fields["reference"] = rng.choice(VOICES)
    if rng.random() < 0.3:
        voice = rng.choice(VOICES)
        fields["prompt"] = Prompt(digest=voice.digest, clip=voice.clip, text="said")
    if rng.random() < 0.2:
        fields["retry_badcase_ratio_threshold"] = 0.2
    fault = rng.choice(
        ["", "", "", "", "", "", " @fail=prefill@", " @fail=admit@", f" @fail=decode:{rng.randint(1, 9)}@"]
    )
    lengths = ",".join(str(rng.randint(1, 20)) for _ in range(3))
    return request(f"request {index} @patches={lengths}@{fault}", seed=rng.randrange(100), **fields)


def test_b1_thirty_two_texts_rendered_together_equal_their_solo_renders() -> None:
    driver = Driver(max_batch=32)
    asked = [request(f"text {index} @patches={4 + index}@", seed=index) for index in range(32)]
    replies = [driver.submit(each, stream=index % 2 == 0) for index, each in enumerate(asked)]
    driver.run()
    assert max(len(step.slots) for step in driver.record.steps()) > 16
    for index, (reply, each) in enumerate(zip(replies, asked, strict=True)):
        check_alone(reply.streamed if index % 2 == 0 else reply.result, each)
    driver.check_idle()


@pytest.mark.parametrize("seed", range(6))
def test_b2_random_schedules_leave_every_survivor_equal_and_nothing_behind(seed: int) -> None:
    """Hundreds of joins, finishes, cancels, refusals and faults."""
    rng = random.Random(seed)
    driver = Driver(make_fake_model(**FAST), max_batch=rng.choice([1, 3, 8]), max_queue=10, pieces_per_cycle=2)
    sent: list[tuple[Probe, SynthRequest, bool]] = []
    for index in range(150):
        asked, stream = some_request(rng, index), rng.random() < 0.5
        try:
            sent.append((driver.submit(asked, stream=stream), asked, stream))
        except Overloaded:
            driver.run(lambda: driver.inbox.load.renders < 8)
        if sent and rng.random() < 0.25:
            rng.choice(sent[-12:])[0].cancel()
        driver.cycle(rng.randrange(4))
    driver.run()
    survivors = 0
    for reply, asked, stream in sent:
        if isinstance(reply.error, Cancelled):
            assert reply.cancelled
        elif isinstance(reply.error, ModelError):
            assert "@fail=" in asked.text
        else:
            check_alone(reply.streamed if stream else reply.result, asked, stream=stream, **FAST)
            survivors += 1
    assert survivors > 30
    driver.check_idle()


async def collect(engine: Engine, asked: SynthRequest, *, leave_after: int | None = None) -> SynthResult:
    async with AsyncReply[Any]() as reply:
        engine.submit(asked, reply, stream=True)
        chunks = []
        async for chunk in reply:
            chunks.append(chunk)
            if leave_after is not None and len(chunks) >= leave_after:
                raise TimeoutError("left")
        assert chunks[-1].summary is not None
        return SynthResult(np.concatenate([chunk.samples for chunk in chunks]), chunks[-1].summary)


async def test_f1_streams_at_concurrency_eight_equal_buffered_renders() -> None:
    asked = [request(f"text {index} @patches={6 + index % 9}@", seed=index) for index in range(40)]
    limit = asyncio.Semaphore(8)
    with Engine(make_fake_model, EngineOptions(max_batch=4, max_queue=8)) as engine:

        async def one(each: SynthRequest) -> None:
            async with limit:
                check_alone(await collect(engine, each), each, stream=True)

        await asyncio.gather(*(one(each) for each in asked))
        assert engine.load.renders == 0


async def test_v1_four_hundred_callers_who_leave_at_random_moments() -> None:
    """Before the first chunk, after two, while queued, by an exception or by cancellation of their task."""
    rng = random.Random(5)
    with Engine(lambda: make_fake_model(**FAST), EngineOptions(max_batch=8, max_queue=500)) as engine:
        stay = [request(f"stay {index} @patches=9@", seed=index) for index in range(20)]
        staying = [asyncio.create_task(collect(engine, each)) for each in stay]
        leaving = []
        for index in range(400):
            leaver = request(f"leave {index} @patches=never@", cfg_value=rng.choice([2.0, 2.0, 3.0]))
            leaving.append(asyncio.create_task(collect(engine, leaver, leave_after=rng.randrange(1, 4))))
            if rng.random() < 0.6:
                asyncio.get_running_loop().call_later(rng.random() / 50, leaving[-1].cancel)
        outcomes = await asyncio.gather(*leaving, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {TimeoutError, asyncio.CancelledError}
        for each, task in zip(stay, staying, strict=True):
            check_alone(await task, each, stream=True, **FAST)
        fresh = [request(f"fresh {index}", seed=index) for index in range(10)]
        for each in fresh:
            check_alone(await collect(engine, each), each, stream=True, **FAST)
    counts = engine.snapshot().record.counts
    # Who left may have had all audio by then.
    assert counts.submitted == counts.cancelled + sum(counts.finished.values())
    assert counts.finished["stop"] == 30
    assert counts.failed == {}
    model = engine.model
    assert model.seated_slots == []  # type: ignore[attr-defined]
