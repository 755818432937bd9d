"""The HTTP surface over a local replica, on a real port: for clients that are programs of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.unit.serve.local import LocalServer


def ends_with_its_caller(app: ASGIApp) -> ASGIApp:
    """``app`` as Serve runs it: cancelled when the caller leaves. uvicorn by itself lets it run to its end."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        messages: asyncio.Queue[Any] = asyncio.Queue()

        async def listen() -> None:
            while True:
                message = await receive()
                await messages.put(message)
                if message["type"] == "http.disconnect":
                    return

        work = asyncio.ensure_future(app(scope, messages.get, send))
        ear = asyncio.ensure_future(listen())
        await asyncio.wait([work, ear], return_when=asyncio.FIRST_COMPLETED)
        ear.cancel()
        if not work.done():
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    return run


@contextlib.contextmanager
def running(settings: dict[str, Any], **model: Any) -> Iterator[tuple[str, LocalServer]]:
    """A server on the fake model; its address, and itself to look into (from this thread: its engine alone)."""
    ready, up = threading.Event(), []

    async def main() -> None:
        local = LocalServer({"model_name": "voxr"} | settings, **model)
        server = uvicorn.Server(
            uvicorn.Config(ends_with_its_caller(local.app), host="127.0.0.1", port=0, log_level="warning")
        )
        task = asyncio.create_task(server.serve())
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        up.append((server, local))
        ready.set()
        await task
        await local.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(60)
    server, local = up[0]
    try:
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", local
    finally:
        server.should_exit = True
        thread.join(20)


@contextlib.contextmanager
def serving(settings: dict[str, Any]) -> Iterator[str]:
    """The address of a server on the fake model."""
    with running(settings) as (address, _):
        yield address
