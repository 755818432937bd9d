"""Speech sessions through Serve's real proxy, with an ordinary WebSocket client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import websockets

from tests.fakes.solo import render_alone
from tests.serve.server import WAIT_S, Server
from tests.unit.serve.test_websocket import SENTENCES, audio_of, continued
from voxr_ray.audio import pcm16_bytes
from voxr_ray.messages import SynthRequest


def connect(server: Server, **options: Any) -> Any:
    url = server.url.replace("http:", "ws:") + "/v1/audio/speech/stream"
    return websockets.connect(url, max_size=None, **options)


async def say(socket: Any, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind} | fields))


async def until(socket: Any, kind: str) -> list[Any]:
    came: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while not came or not isinstance(came[-1], dict) or came[-1]["type"] != kind:
            message = await socket.recv()
            came.append(message if isinstance(message, bytes) else json.loads(message))
    return came


async def test_a_session(server: Server) -> None:
    await asyncio.to_thread(server.wait_until_idle)
    async with connect(server) as socket:
        await say(socket, "session.config", response_format="pcm", seed=3)
        for utterance in range(2):
            for word in "".join(SENTENCES).split(" "):
                await say(socket, "input.text", text=word + " ")
            await say(socket, "input.done")
            came = await until(socket, "session.done")
            assert came[-1] == {"type": "session.done", "total_sentences": 3}
            if not utterance:
                assert audio_of(came) == continued(SENTENCES, 3)
        await say(socket, "input.nonsense")
        assert (await until(socket, "error"))[-1]["param"] == "type"


async def test_audio_comes_while_the_text_is_still_written(server: Server) -> None:
    async with connect(server) as socket:
        await say(socket, "session.config", response_format="pcm", seed=3)
        await say(socket, "input.text", text="The first one @patches=9@ is complete. The next")
        came = await until(socket, "audio.done")
        text = "The first one @patches=9@ is complete."
        assert audio_of(came) == [pcm16_bytes(render_alone(SynthRequest(text=text, seed=3), stream=True).samples)]


async def test_cancel_and_leave_free_the_slot(server: Server) -> None:
    await asyncio.to_thread(server.wait_until_idle)
    errors = server.error_lines()
    before = (await asyncio.to_thread(server.snapshot)).record.counts.cancelled
    endless = "It never ends and never ends @patches=never@ and never ends. And on"
    async with connect(server) as socket:
        await say(socket, "session.config", response_format="pcm")
        await say(socket, "input.text", text=endless)
        await until(socket, "audio.start")
        await say(socket, "input.cancel")
        await until(socket, "input.cancelled")
        after = await asyncio.to_thread(server.wait_for, lambda s: s.load.renders == 0)
        assert after.record.counts.cancelled == before + 1
        await say(socket, "input.text", text=endless)
        await until(socket, "audio.start")
    after = await asyncio.to_thread(server.wait_for, lambda s: s.load.renders == 0)
    assert after.record.counts.cancelled == before + 2
    async with connect(server) as socket:
        await say(socket, "session.config", response_format="pcm")
        await say(socket, "input.text", text=endless)
        await until(socket, "audio.start")
        socket.transport.abort()  # no closing handshake
    await asyncio.to_thread(server.wait_for, lambda s: s.load.renders == 0)
    assert server.error_lines() == errors


async def test_a_slow_reader_with_credit_is_not_overrun(server: Server) -> None:
    window = 16_384
    async with connect(server) as socket:
        await say(socket, "session.config", response_format="pcm", seed=1, max_unread_bytes=window)
        await say(socket, "input.text", text="A sentence of some length @patches=40@ to read. " * 2)
        await say(socket, "input.done")
        read, unconfirmed, done = 0, 0, False
        async with asyncio.timeout(WAIT_S):
            while not done:
                try:
                    async with asyncio.timeout(0.3):
                        message = await socket.recv()
                except TimeoutError:  # nothing more comes: confirm what has been read
                    read, unconfirmed = read + unconfirmed, 0
                    await say(socket, "audio.read", bytes=read)
                    continue
                unconfirmed += len(message) if isinstance(message, bytes) else 0
                assert unconfirmed <= window
                done = isinstance(message, str) and json.loads(message)["type"] == "session.done"
    assert read + unconfirmed == 2 * 40 * 960


async def test_many_sessions_at_once(server: Server) -> None:
    async def session(n: int) -> list[bytes]:
        async with connect(server) as socket:
            await say(socket, "session.config", response_format="pcm", seed=n)
            await say(socket, "input.text", text="One of several @patches=8@ sessions.")
            await say(socket, "input.done")
            return audio_of(await until(socket, "session.done"))

    came = await asyncio.gather(*(session(n) for n in range(4)))
    for n, audio in enumerate(came):
        request = SynthRequest(text="One of several @patches=8@ sessions.", seed=n)
        assert audio == [pcm16_bytes(render_alone(request, stream=True).samples)]
