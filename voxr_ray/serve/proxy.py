"""OpenAI's shape for what Serve's own proxy answers before, or instead of, a router.

The proxy is Serve's and stands before every application of the cluster. It takes middleware from the place that
``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` names in the environment of the process that starts Ray::

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=voxr_ray.serve.proxy:middleware serve run voxr_ray:app

What it makes itself are plain texts: 404 where no application has the path, 408 for its own time-out, 429 and 503 when
a router cannot be had, and nothing at all when a router died over a request. They are told from an application's
answers by their missing length, which no framework leaves out of a whole answer; those pass untouched.

Runs on the proxy's event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxr_ray.errors import EngineError, Overloaded, Unavailable, VoxrError
from voxr_ray.serve.http_errors import RequestTimeout, UnknownPath, error_response

_RETRY_AFTER_S = 1.0
_OWN_PATHS = "/-/"
_OWN_STATUSES = (404, 408, 429, 503)
_PLAIN = "text/plain; charset=utf-8"
_MAX_TEXT = 1000
_REPLACED = (b"content-type", b"content-length")


def middleware() -> list[Middleware]:
    """What Serve is to put around its proxy."""
    return [Middleware(ShapedErrors)]


class ShapedErrors:
    """Gives the proxy's errors the shape of all others.

    Args:
        app: The proxy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on but the proxy's own errors."""
        if scope["type"] != "http" or scope["path"].startswith(_OWN_PATHS):
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, receive, send)
        await self._app(scope, receive, answer.send)
        await answer.end()


class _Answer:
    """One answer on its way."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._begun = False
        self._held: Message | None = None
        self._text = b""

    async def send(self, message: Message) -> None:
        """Send a message on, or hold it while it belongs to an error of the proxy's."""
        if message["type"] == "http.response.start":
            self._begun = True
            if _is_own(message):
                self._held = message
                return
        if self._held is None:
            await self._send(message)
            return
        self._text += message.get("body", b"")[:_MAX_TEXT]
        if not message.get("more_body", False):
            start, self._held = self._held, None
            await self._answer(_error(start["status"], self._text.decode(errors="replace")), start["headers"])

    async def end(self) -> None:
        """Answer what nobody has answered; a caller who left hears nothing of it."""
        if not self._begun:
            error = EngineError("the request failed before an answer was made; the server's log says why")
            await self._answer(error, [])

    async def _answer(self, error: VoxrError, headers: Sequence[tuple[bytes, bytes]]) -> None:
        response = error_response(error)
        given = {name.lower() for name, _ in headers}
        mine = [(name, value) for name, value in response.raw_headers if name != b"retry-after" or name not in given]
        response.raw_headers = mine + [(name, value) for name, value in headers if name.lower() not in _REPLACED]
        await response(self._scope, self._receive, self._send)


def _is_own(start: Message) -> bool:
    headers = Headers(raw=[tuple(pair) for pair in start["headers"]])
    own = start["status"] in _OWN_STATUSES and headers.get("content-type") == _PLAIN
    return own and "content-length" not in headers


def _error(status: int, text: str) -> VoxrError:
    kinds: dict[int, tuple[type[VoxrError], Any]] = {
        404: (UnknownPath, None),
        408: (RequestTimeout, None),
        429: (Overloaded, _RETRY_AFTER_S),
        503: (Unavailable, _RETRY_AFTER_S),
    }
    kind, retry_after_s = kinds[status]
    return kind(text, retry_after_s=retry_after_s)
