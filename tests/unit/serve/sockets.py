"""A WebSocket client that is the other end of an ASGI application: every message in sight, and no network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.serve.local import LocalServer

WAIT_S = 20.0


class Socket:
    """One connection. ``received`` holds everything that came, in order."""

    def __init__(self) -> None:
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone = False

    async def receive(self) -> dict[str, Any]:
        return await self._to_app.get()

    async def send(self, message: Any) -> None:
        self._from_app.put_nowait(message)

    def say(self, kind: str, **fields: Any) -> None:
        self.raw({"type": kind} | fields)

    def raw(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self._to_app.put_nowait({"type": "websocket.receive", "text": text})

    def binary(self, data: bytes) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "bytes": data})

    def leave(self) -> None:
        self.gone = True
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1006})

    @property
    def unread(self) -> int:
        return self._from_app.qsize()

    async def next(self) -> Any:
        """The next message: a dict, bytes, or ``None`` when the server closed."""
        async with asyncio.timeout(WAIT_S):
            message = await self._from_app.get()
        if message["type"] == "websocket.close":
            return None
        return message["bytes"] if message.get("bytes") is not None else json.loads(message["text"])

    async def until(self, kind: str) -> list[Any]:
        """Messages up to the first of a type, that one included."""
        came: list[Any] = []
        while not came or not isinstance(came[-1], dict) or came[-1]["type"] != kind:
            came.append(await self.next())
        return came

    async def error(self) -> dict[str, Any]:
        """The next message, which must be an error."""
        message = await self.next()
        assert message["type"] == "error", message
        assert set(message) >= {"message", "code", "param"}
        assert len(message["message"]) < 400
        error: dict[str, Any] = message
        return error


@asynccontextmanager
async def connected(local: LocalServer) -> AsyncIterator[Socket]:
    """A session; when it is left the client is gone and the application has ended without an error."""
    socket = Socket()
    scope = {"type": "websocket", "path": "/v1/audio/speech/stream", "raw_path": b"", "query_string": b"",
             "headers": [], "subprotocols": [], "scheme": "ws", "server": ("test", 80), "client": ("test", 1),
             "root_path": "", "asgi": {"version": "3.0"}, "state": {}}  # fmt: skip
    socket._to_app.put_nowait({"type": "websocket.connect"})
    running = asyncio.create_task(local.app(scope, socket.receive, socket.send))  # type: ignore[arg-type]
    assert (await socket._from_app.get())["type"] == "websocket.accept"
    try:
        yield socket
    finally:
        socket.leave()
        async with asyncio.timeout(WAIT_S):
            await running
