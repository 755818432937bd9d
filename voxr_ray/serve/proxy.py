"""OpenAI's shape for what Serve's own proxy answers before, or instead of, a router.

The proxy is Serve's and stands before every application of the cluster. It takes middleware from the place that
``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`` names in the environment of the process that starts Ray::

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=voxr_ray.serve.proxy:middleware serve run voxr_ray:app

What it makes itself are plain texts: 404 where no application has the path, 408 for its own time-out, 429 and 503 when
a router cannot be had. They are told from an application's answers by their missing length, which no framework leaves
out of a whole answer; those pass untouched. When a router died over a request it makes nothing at all: an application
that lives always answers, with a 500 at least. And it fails over headers that it reads itself if they are not UTF-8, so
those are refused before.

Runs on the proxy's event loop.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from voxr_ray.errors import InvalidRequest, Overloaded, Unavailable, VoxrError
from voxr_ray.serve.http_errors import RequestTimeout, UnknownPath, error_response

_RETRY_AFTER_S = 1.0
_OWN_PATHS = "/-/"
_OWN_STATUSES = (404, 408, 429, 503)
_PLAIN = "text/plain; charset=utf-8"
_MAX_TEXT = 1000
_REPLACED = (b"content-type", b"content-length")
_POLICY_VIOLATION = 1008

_REQUEST_ID = b"x-request-id"
_READ_BY_SERVE = ("serve-multiplexed-model-id", "x-request-disconnect-disabled", "x-request-timeout-seconds")


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
        session = os.environ.get("RAY_SERVE_SESSION_ID_HEADER_KEY", "x-session-id")
        self._read_by_serve = {_plain(name.encode()) for name in (*_READ_BY_SERVE, session)} | {_REQUEST_ID}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on but the proxy's own errors, and what it would fail over."""
        if scope["type"] not in ("http", "websocket") or scope["path"].startswith(_OWN_PATHS):
            await self._app(scope, receive, send)
            return
        # A blank id would be kept: without one Serve draws one.
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != _REQUEST_ID or pair[1].strip()]
        unreadable = self._unreadable(scope)
        if scope["type"] == "websocket":
            if unreadable is None:
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": unreadable})
            return
        if unreadable is not None:
            await error_response(InvalidRequest(unreadable))(scope, receive, send)
            return
        answer = _Answer(scope, receive, send)
        await self._app(scope, receive, answer.send)
        await answer.end()

    def _unreadable(self, scope: Scope) -> str | None:
        """What is wrong with a header that Serve reads, if one is no UTF-8."""
        for name, value in scope["headers"]:
            if not _is_utf8(name) or (_plain(name) in self._read_by_serve and not _is_utf8(value)):
                return f"the header {name.decode(errors='replace')[:80]!r} is not UTF-8: send ASCII"
        return None


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
            error = Unavailable(
                "the router that worked on the request was lost before it answered: send the request again",
                retry_after_s=_RETRY_AFTER_S,
            )
            await self._answer(error, [])

    async def _answer(self, error: VoxrError, headers: Sequence[tuple[bytes, bytes]]) -> None:
        response = error_response(error)
        given = {name.lower() for name, _ in headers}
        mine = [(name, value) for name, value in response.raw_headers if name != b"retry-after" or name not in given]
        response.raw_headers = mine + [(name, value) for name, value in headers if name.lower() not in _REPLACED]
        await response(self._scope, self._receive, self._send)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _plain(name: bytes) -> bytes:
    """A header's name as Serve compares it: proxies on the way write ``-`` for ``_``."""
    return name.lower().replace(b"_", b"-")


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
