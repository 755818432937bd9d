"""Who may call: the gate that asks for a key, and the keys themselves.

The gate is ASGI middleware on a router's event loop and decides before a body is read. It guards WebSockets like
requests. Open are ``/health``, for load balancers have no keys, and the pages and their files: they hold nothing of
this server, and ask whoever opens them for a key.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from voxr_ray.config import Settings
from voxr_ray.errors import ConfigurationError
from voxr_ray.serve.http_errors import Unauthorized, code_of, error_response, status_of

OPEN_PATHS = frozenset({"/health", "/", "/board"})
OPEN_FOLDER = "/page/"

_POLICY_VIOLATION = 1008


def with_keys(settings: Settings) -> Settings:
    """Settings that hold the keys of their file, too.

    Raises:
        ConfigurationError: The file cannot be read, or holds no key: that would open the server to everybody.
    """
    if settings.api_keys_file is None:
        return settings
    try:
        lines = Path(settings.api_keys_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"api_keys_file {settings.api_keys_file!r} cannot be read: {error}", param="api_keys_file"
        ) from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigurationError(
            f"api_keys_file {settings.api_keys_file!r} holds no key: give one a line", param="api_keys_file"
        )
    held = (*settings.api_keys, *(SecretStr(key) for key in keys))
    return settings.model_copy(update={"api_keys": held, "api_keys_file": None})


class KeyGate:
    """Lets through what carries a key.

    Args:
        app: What the gate stands before.
        keys: The keys; at least one.
        count: Told status and code of every refusal.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[SecretStr], count: Callable[[int, str], None]) -> None:
        self._app = app
        self._count = count
        self._keys = [key.get_secret_value().encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 401 (a WebSocket is closed before it opens)."""
        path = _path(scope) if scope["type"] in ("http", "websocket") else None
        if path is None or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            await self._app(scope, receive, send)
            return
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._knows(given.strip()):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "a key is needed"})
        else:
            what = "the API key is not one of this server's" if given else "an API key is needed"
            error = Unauthorized(f"{what}: send 'Authorization: Bearer KEY'")
            self._count(status_of(error), code_of(error))
            await error_response(error)(scope, receive, send)

    def _knows(self, given: str) -> bool:
        """Compare with every key, each in constant time: how long it takes says nothing about any of them."""
        presented = given.encode("latin-1", "replace")
        matches = [hmac.compare_digest(presented, key) for key in self._keys]
        return any(matches)


def _path(scope: Mapping[str, str]) -> str:
    """Path below the prefix that the application is mounted at."""
    return scope["path"].removeprefix(scope.get("root_path", ""))
