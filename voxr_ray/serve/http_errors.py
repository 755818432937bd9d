"""How errors look over HTTP: one table from class to status, one shape for all of them.

The shape is OpenAI's, ``{"error": {"message", "type", "param", "code"}}``, for every answer a router gives,
including unknown paths and methods. :mod:`voxr_ray.serve.proxy` gives it to what Serve's own proxy answers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.routing import Match

from voxr_ray.errors import (
    BadAudio,
    Cancelled,
    ConfigurationError,
    EngineError,
    EngineStopped,
    InvalidRequest,
    Overloaded,
    ReplicaLost,
    RequestError,
    TooLarge,
    Unavailable,
    UnknownVoice,
    VoiceExists,
    VoxrError,
)
from voxr_ray.serve.responses import StreamBroken

_log = logging.getLogger(__name__)


class RequestTimeout(VoxrError):
    """The answer could not begin within the time a request may take."""


class BodyTooLarge(RequestError):
    """The body of the request is larger than this server reads."""


class UnsupportedMediaType(RequestError):
    """The body of the request is not of a type that is understood."""


class UnknownModel(RequestError):
    """The request asks for a model that is not the one served."""


class UnknownPath(RequestError):
    """Nothing is served at the path of the request."""


class Unauthorized(RequestError):
    """The request carries no key of this server's, or a wrong one."""


class UnknownField(InvalidRequest):
    """The body has a field that is none. ``param`` is the caller's own name for it, whatever that means elsewhere."""


@dataclass(frozen=True, slots=True)
class _Row:
    status: int
    kind: str
    code: str


_CALLER = "invalid_request_error"
_SERVER = "server_error"

_HTTP_NAMES = {"text": "input", "reference": "ref_audio", "prompt": "prompt_audio"}
"""Fields that are called otherwise in the body of an HTTP request than in the values below it."""

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
"""Codes of what no class of ours stands for."""

_TABLE: dict[type[VoxrError], _Row] = {
    InvalidRequest: _Row(400, _CALLER, "invalid_value"),
    TooLarge: _Row(400, _CALLER, "too_large"),
    BadAudio: _Row(400, _CALLER, "bad_audio"),
    Unauthorized: _Row(401, _CALLER, "invalid_api_key"),
    UnknownVoice: _Row(404, _CALLER, "voice_not_found"),
    VoiceExists: _Row(409, _CALLER, "voice_exists"),
    UnknownModel: _Row(404, _CALLER, "model_not_found"),
    UnknownPath: _Row(404, _CALLER, "not_found"),
    BodyTooLarge: _Row(413, _CALLER, "body_too_large"),
    UnsupportedMediaType: _Row(415, _CALLER, "unsupported_media_type"),
    RequestError: _Row(400, _CALLER, "invalid_request"),
    RequestTimeout: _Row(408, "timeout_error", "timeout"),
    Cancelled: _Row(499, _CALLER, "cancelled"),
    Overloaded: _Row(503, "overloaded_error", "overloaded"),
    EngineStopped: _Row(503, _SERVER, "unavailable"),
    ReplicaLost: _Row(503, _SERVER, "unavailable"),
    Unavailable: _Row(503, _SERVER, "unavailable"),
    EngineError: _Row(500, _SERVER, "internal_error"),
    ConfigurationError: _Row(500, _SERVER, "misconfigured"),
    VoxrError: _Row(500, _SERVER, "internal_error"),
}


def _row(error: VoxrError) -> _Row:
    return next(_TABLE[cls] for cls in type(error).__mro__ if cls in _TABLE)


def status_of(error: VoxrError) -> int:
    """HTTP status of an error."""
    return _row(error).status


def code_of(error: VoxrError) -> str:
    """The ``code`` that tells programs what an error is."""
    return _row(error).code


def error_body(message: str, kind: str, param: str | None, code: str) -> dict[str, dict[str, str | None]]:
    """A JSON body in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(error: VoxrError) -> JSONResponse:
    """The answer for an error, with ``Retry-After`` where trying again makes sense."""
    row = _row(error)
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if row.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body_of(error), row.status, headers)


def body_of(error: VoxrError) -> dict[str, dict[str, str | None]]:
    """The JSON body of an error."""
    row = _row(error)
    param = error.param
    if param is not None and not isinstance(error, UnknownField):
        param = _HTTP_NAMES.get(param, param)
    return error_body(error.message, row.kind, param, row.code)


def error_of(
    status: int, code: str | None, message: str, *, param: str | None = None, retry_after_s: float | None = None
) -> VoxrError:
    """The error that an answer of a server stands for: the way back, for clients."""
    kind: type[VoxrError] = EngineError if status >= 500 else RequestError
    for cls, row in _TABLE.items():
        if (row.status, row.code) == (status, code):
            kind = cls
            break
    return kind(message, param=param, retry_after_s=retry_after_s)


def error_table() -> list[tuple[int, str, str]]:
    """Status, type and code of every error there is: what descriptions and documents are made from or held to."""
    rows = {(row.status, row.kind, row.code) for row in _TABLE.values()}
    return sorted(rows | {(status, _CALLER, code) for status, code in _HTTP_CODES.items()})


def from_validation(
    error: ValidationError, what: str = "the body", skip: int = 0, names: Mapping[str, str] = _HTTP_NAMES
) -> RequestError:
    """The refusal that says what pydantic found first.

    Args:
        error: What it found.
        what: What was read.
        skip: Places of it that are no field's name.
        names: Fields that the caller knows by another name.
    """
    first: ErrorDetails = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"{what} is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    place = first["loc"][skip:]
    if not place:
        return InvalidRequest(first["msg"].removeprefix("Value error, "))
    param = str(place[0])
    if first["type"] == "extra_forbidden":
        return UnknownField(f"unknown field {param[:80]!r}", param=param[:80])
    param = names.get(param, param)
    if first["type"] == "missing":
        return InvalidRequest(f"{param} is missing", param=param)
    shown = "" if isinstance(first["input"], dict | list) else f" (given: {repr(first['input'])[:60]})"
    return InvalidRequest(f"{param}: {first['msg'].removeprefix('Value error, ')}{shown}", param=param)


def _allowed(app: FastAPI, request: Request) -> str:
    """The methods of a path. Several routes may share it, and the one that refused names its own alone."""
    found: set[str] = set()
    for route in app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(found))


def install(app: FastAPI, count: Callable[[int, str], None]) -> None:
    """Give every error of ``app`` its shape.

    Args:
        app: Gets the handlers.
        count: Told status and code of every answer that is an error.
    """

    async def on_error(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, VoxrError):
            if status_of(error) >= 500 and not isinstance(error, Overloaded):
                _log.error("request %s failed: %s", request.headers.get("x-request-id", "-")[:128], error)
            count(status_of(error), code_of(error))
            return error_response(error)
        if isinstance(error, HTTPException):
            kind = _CALLER if error.status_code < 500 else _SERVER
            code = _HTTP_CODES.get(error.status_code, "http_error")
            count(error.status_code, code)
            body = error_body(f"{request.method} {request.url.path}: {error.detail}", kind, None, code)
            headers = {"Allow": _allowed(app, request)} if error.status_code == 405 else error.headers
            return JSONResponse(body, error.status_code, headers)
        if not isinstance(error, StreamBroken):  # that one is no answer, and was counted where it broke
            count(500, "internal_error")
        # Starlette raises it again once this is sent, so Serve logs the traceback.
        return JSONResponse(error_body("internal error", _SERVER, None, "internal_error"), 500)

    for kind in (VoxrError, HTTPException, Exception):
        app.add_exception_handler(kind, on_error)
