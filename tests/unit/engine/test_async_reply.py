"""Replies on an asyncio loop: nothing is missed, bursts wake the loop once, and leaving is always noticed."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from voxr_ray.engine.async_reply import AsyncReply
from voxr_ray.errors import Cancelled, ModelError
from voxr_ray.messages import AudioChunk


def chunk(index: int = 0) -> AudioChunk:
    return AudioChunk(np.zeros(4, dtype=np.float32), index, 1, 48_000)


def bound() -> AsyncReply[Any]:
    reply = AsyncReply[Any]()
    reply.bind(lambda ending: None)
    return reply


async def test_result_arrives_from_another_thread() -> None:
    reply = bound()
    await asyncio.gather(reply.result(), asyncio.to_thread(reply.done, "end"))
    assert await reply.result() == "end"


async def test_result_raises_the_jobs_error() -> None:
    reply = bound()
    reply.fail(ModelError("no"))
    with pytest.raises(ModelError):
        await reply.result()


async def test_chunks_arrive_in_order_with_none_missing() -> None:
    reply = bound()

    def own() -> None:
        for index in range(2000):
            reply.chunk(chunk(index))
        reply.done("end")

    owner = threading.Thread(target=own)
    owner.start()
    assert [each.index async for each in reply] == list(range(2000))
    assert await reply.result() == "end"
    owner.join()


async def test_an_error_ends_the_iteration_after_the_chunks_before_it() -> None:
    reply = bound()
    reply.chunk(chunk())
    reply.fail(ModelError("no"))
    assert (await anext(reply)).index == 0
    with pytest.raises(ModelError):
        await anext(reply)
    with pytest.raises(ModelError):
        await anext(reply)


async def test_a_burst_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rings = []
    loop = asyncio.get_running_loop()
    ring = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args, **kwargs: rings.append(1) or ring(*args, **kwargs))
    reply = bound()
    for index in range(10):
        reply.chunk(chunk(index))
    assert len(rings) == 1
    assert (await anext(reply)).index == 0
    reply.chunk(chunk(10))
    assert len(rings) == 2
    reply.done("end")
    assert len([each async for each in reply]) == 10


async def test_how_far_the_caller_is_behind() -> None:
    reply = bound()
    for index in range(3):
        reply.chunk(chunk(index))
    assert reply.pending_chunks == 3
    await anext(reply)
    reply.chunk(chunk(3))
    assert reply.pending_chunks == 3
    reply.done("end")
    assert len([each async for each in reply]) == 3
    assert reply.pending_chunks == 0


async def test_leaving_the_context_cancels() -> None:
    async with bound() as reply:
        assert not reply.cancelled
    assert reply.cancelled


@pytest.mark.parametrize("wait", ["result", "iteration"])
async def test_a_cancelled_waiter_counts_as_gone(wait: str) -> None:
    """Rule 11: whatever wraps the reply, a task that is cancelled frees the slot."""
    reply = bound()

    async def listen() -> None:
        if wait == "result":
            await reply.result()
        else:
            async for _ in reply:
                pass

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reply.cancelled


def test_a_closed_event_loop_counts_as_a_caller_who_left() -> None:
    async def leave() -> AsyncReply[Any]:
        return bound()

    reply = asyncio.run(leave())
    reply.chunk(chunk())
    assert reply.cancelled
    reply.fail(Cancelled("gone"))


async def test_pulses_come_while_nothing_else_does_and_lose_no_chunk() -> None:
    reply = bound()
    pulses = reply.pulses(0.01)
    assert [await anext(pulses) for _ in range(3)] == [None, None, None]
    assert not reply.cancelled, "one who waits has not left"
    for index in range(3):
        reply.chunk(chunk(index))
    reply.done("end")
    assert [each.index async for each in pulses if each is not None] == [0, 1, 2]
    assert await reply.result() == "end"


async def test_pulses_end_with_the_jobs_error() -> None:
    reply = bound()
    reply.chunk(chunk())
    reply.fail(ModelError("no"))
    pulses = reply.pulses(10.0)
    assert await anext(pulses) is not None
    with pytest.raises(ModelError):
        await anext(pulses)


async def test_a_bell_for_mail_already_taken_is_no_pulse() -> None:
    reply = bound()
    pulses = reply.pulses(60.0)
    waiting = asyncio.ensure_future(anext(pulses))
    for index in range(50):
        await asyncio.to_thread(reply.chunk, chunk(index))
        item = await waiting
        assert item is not None
        assert item.index == index
        waiting = asyncio.ensure_future(anext(pulses))
    waiting.cancel()
