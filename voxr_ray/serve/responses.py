"""The HTTP answer that streams audio. Runs on a router's event loop.

Starlette's own streaming response listens for a disconnect beside sending, and under Serve that listener ends in
logged errors. Serve cancels the task of a caller who left anyway, so this one only sends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class StreamBroken(RuntimeError):
    """The audio failed after its first byte: raised out of the application so that the connection breaks.

    Not one of the project's errors, for those have an answer and it is too late for one.
    """


class AudioStream(Response):
    """A response whose body is sent while it is made.

    Args:
        content: The body in pieces; closed however the sending ends. Also its attribute ``pieces``.
        headers: Extra headers.
        media_type: Content type.
    """

    def __init__(self, content: AsyncGenerator[bytes, None], headers: Mapping[str, str], media_type: str) -> None:
        self.pieces = content
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send start, pieces and end; an exception of the content goes through, and the connection breaks."""
        async with aclosing(self.pieces) as content:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for data in content:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
