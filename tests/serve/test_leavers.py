"""Callers who leave, and more callers than there is room: slots come back, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.serve.server import WAIT_S, Server, idle
from voxr_ray.messages import SynthRequest

LONG = "a text that would take very long to speak " * 5 + "@patches=never@"


def speech(server: Server, text: str = LONG, **fields: Any) -> dict[str, Any]:
    return {"method": "POST", "url": f"{server.url}/v1/audio/speech",
            "json": {"input": text, "response_format": "pcm", "retry_badcase": False} | fields}  # fmt: skip


async def now(server: Server) -> Any:
    return await asyncio.to_thread(server.snapshot)


async def wait_for(server: Server, condition: Any) -> Any:
    return await asyncio.to_thread(server.wait_for, condition)


@pytest.fixture
def quiet(server: Server) -> Any:
    """An idle server; afterwards it is idle again, and nobody logged an error."""
    server.wait_until_idle()
    errors = server.error_lines()
    yield server
    server.wait_until_idle()
    assert server.error_lines() == errors
    answer = server.speak(input="the next one @patches=4@")
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("path", "media_type", "beginning"),
    [
        ("/v1/audio/speech", "application/json", b'{"input": "'),
        (
            "/v1/audio/voices",
            "multipart/form-data; boundary=x",
            b"--x\r\ncontent-disposition: form-data; name=name\r\n",
        ),
    ],
)
async def test_those_who_leave_while_they_send_a_body_leave_no_trace(
    quiet: Server, path: str, media_type: str, beginning: bytes
) -> None:
    address = urlsplit(quiet.url)
    head = f"POST {address.path}{path} HTTP/1.1\r\nhost: x\r\ncontent-type: {media_type}\r\n"
    before = quiet.forgotten_errors()
    for stay_s in (0.0, 0.01, 0.05, 0.2) * 10:
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"{head}content-length: 9000\r\n\r\n".encode() + beginning)
        await writer.drain()
        await asyncio.sleep(stay_s)
        writer.close()
        await writer.wait_closed()
    # Python complains of an exception when its future is collected, which the answers to others bring about.
    for _ in range(20):
        assert (await asyncio.to_thread(quiet.speak, input="meanwhile @patches=4@")).status_code == 200
    assert quiet.forgotten_errors() == before


def finished(snapshot: Any) -> int:
    return sum(snapshot.record.counts.finished.values())


def cancelled(snapshot: Any) -> int:
    count: int = snapshot.record.counts.cancelled
    return count


@pytest.mark.parametrize("stream", [False, True])
async def test_one_who_leaves_before_the_first_audio(quiet: Server, stream: bool) -> None:
    before = await now(quiet)
    text = LONG + "@sleep=prefill:0.5@"
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        call = asyncio.create_task(http.request(**speech(quiet, text, stream=stream)))
        await wait_for(quiet, lambda s: s.load.renders == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    after = await wait_for(quiet, lambda s: s.load.renders == 0)
    assert cancelled(after) == cancelled(before) + 1
    assert finished(after) == finished(before)


async def test_one_who_leaves_a_buffered_render_half_way(quiet: Server) -> None:
    before = await now(quiet)
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        call = asyncio.create_task(http.request(**speech(quiet)))
        await wait_for(quiet, lambda s: s.record.counts.patches > before.record.counts.patches + 3)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    after = await wait_for(quiet, lambda s: s.load.renders == 0)
    assert cancelled(after) == cancelled(before) + 1


async def test_one_who_leaves_after_two_chunks(quiet: Server) -> None:
    before = await now(quiet)
    async with httpx.AsyncClient(timeout=WAIT_S) as http, http.stream(**speech(quiet, stream=True)) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks)
        assert await anext(chunks)
    after = await wait_for(quiet, lambda s: s.load.renders == 0)
    assert cancelled(after) == cancelled(before) + 1
    assert finished(after) == finished(before)


async def test_one_who_leaves_the_queue(quiet: Server) -> None:
    before = await now(quiet)
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        seated = [asyncio.create_task(http.request(**speech(quiet, stream=True))) for _ in range(2)]
        await wait_for(quiet, lambda s: s.record.batch.rows == 2)
        queued = asyncio.create_task(http.request(**speech(quiet, stream=True)))
        await wait_for(quiet, lambda s: s.load.renders == 3)
        queued.cancel()
        await asyncio.gather(queued, return_exceptions=True)
        after = await wait_for(quiet, lambda s: s.load.renders <= 2)
        assert cancelled(after) == cancelled(before) + 1
        assert after.record.counts.seated == before.record.counts.seated + 2, "it never had a slot"
        for call in seated:
            call.cancel()
        await asyncio.gather(*seated, return_exceptions=True)


@pytest.mark.parametrize("by_reference", [False, True])
async def test_one_who_cancels_a_handles_stream(quiet: Server, by_reference: bool) -> None:
    before = await now(quiet)
    request = SynthRequest(text=LONG, seed=1)
    handle = quiet.handle.options(stream=True, _by_reference=by_reference)
    chunks = handle.synthesize_stream.remote(request)
    assert (await anext(chunks)).index == 0
    chunks.cancel()
    after = await wait_for(quiet, lambda s: s.load.renders == 0)
    assert cancelled(after) == cancelled(before) + 1


async def test_three_times_more_than_there_is_room_for(quiet: Server) -> None:
    """Two slots and two places: of twelve at once all are served or refused, and none hangs."""
    before = await now(quiet)
    async with httpx.AsyncClient(timeout=WAIT_S, limits=httpx.Limits(max_connections=None)) as http:
        answers = await asyncio.gather(
            *(http.request(**speech(quiet, f"one of many @patches={60 + n}@", stream=n % 2 == 0)) for n in range(12))
        )
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert len(served) + len(refused) == 12
    assert len(served) >= 4
    assert refused
    for answer in refused:
        error = answer.json()["error"]
        assert error["code"] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
    after = await wait_for(quiet, idle)
    count = after.record.counts.refused.get("Overloaded", 0) - before.record.counts.refused.get("Overloaded", 0)
    assert count == len(refused), "the engine refused, and never Serve"


async def test_many_of_whom_half_leave(quiet: Server) -> None:
    async def leave_or_stay(http: httpx.AsyncClient, n: int) -> int:
        fields = speech(quiet, f"in the crowd @patches={4 + n}@", stream=n % 3 != 0)
        if n % 2:
            answer = await http.request(**fields)
            return answer.status_code
        async with http.stream(**fields) as started:
            async for _ in started.aiter_raw():
                break
            return started.status_code

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=WAIT_S, limits=limits) as http:
        statuses = await asyncio.gather(*(leave_or_stay(http, n) for n in range(40)))
    assert set(statuses) <= {200, 503}
    counts = (await wait_for(quiet, idle)).record.counts
    ended = sum(counts.finished.values()) + counts.cancelled + sum(counts.failed.values()) + counts.encodes
    assert counts.submitted == ended
