"""What Serve's proxy says itself, in the shape of all other errors; what applications say, untouched."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from ray.serve._private.http_util import convert_object_to_asgi_messages
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from voxr_ray.serve.proxy import ShapedErrors, middleware


async def answer_of(app: Any, path: str = "/x", headers: list[tuple[bytes, bytes]] | None = None) -> httpx.Response:
    (around,) = middleware()
    assert around.cls is ShapedErrors
    transport = httpx.ASGITransport(around.cls(app))  # type: ignore[call-arg]
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get(path, headers=headers)


def proxy_saying(text: str, status: int, headers: list[tuple[bytes, bytes]] | None = None) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in convert_object_to_asgi_messages(text, status_code=status, extra_headers=headers):
            if message["type"] == "http.response.start":
                message["headers"].append([b"x-request-id", b"r1"])
            await send(message)

    return app


@pytest.mark.parametrize(
    ("status", "code", "kind", "retry_after"),
    [
        (404, "not_found", "invalid_request_error", None),
        (408, "timeout", "timeout_error", None),
        (429, "overloaded", "overloaded_error", "1"),
        (503, "unavailable", "server_error", "1"),
    ],
)
async def test_the_proxys_errors_get_the_shape(status: int, code: str, kind: str, retry_after: str | None) -> None:
    answer = await answer_of(proxy_saying("what it said", status))
    assert answer.json() == {"error": {"message": "what it said", "type": kind, "param": None, "code": code}}
    assert answer.headers["retry-after" if retry_after else "x-request-id"] == (retry_after or "r1")
    assert answer.headers["content-length"] == str(len(answer.content))


async def test_a_retry_after_of_the_proxys_stands() -> None:
    answer = await answer_of(proxy_saying("full", 503, [(b"retry-after", b"17")]))
    assert answer.headers.get_list("retry-after") == ["17"]


async def test_a_request_nobody_answered_lost_its_router_and_can_be_repeated() -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        return

    answer = await answer_of(silent)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "send the request again" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"] == "1"


async def headers_seen(headers: list[tuple[bytes, bytes]]) -> tuple[httpx.Response, list[tuple[bytes, bytes]]]:
    """The answer to a request with such headers, and those that came through."""
    seen: list[tuple[bytes, bytes]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])
        await PlainTextResponse("came through")(scope, receive, send)

    return await answer_of(app, headers=headers), seen


@pytest.mark.parametrize(
    "name",
    [
        "X-Request-Id", "serve_multiplexed_model_id", "serve-multiplexed-model-id", "x-request-timeout-seconds",
        "x-request-disconnect-disabled", "x-session-id",
    ],
)  # fmt: skip
async def test_headers_that_serve_would_fail_over_are_refused(name: str) -> None:
    answer, seen = await headers_seen([(name.encode(), b"caf\xe9")])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (400, "invalid_value", "invalid_request_error")
    assert name.lower() in error["message"]
    assert not seen
    answer, seen = await headers_seen([(name.encode(), "café".encode())])
    assert answer.text == "came through"
    assert (name.lower().encode(), "café".encode()) in seen


async def test_headers_of_others_may_hold_any_bytes() -> None:
    answer, seen = await headers_seen([(b"x-of-mine", b"caf\xe9")])
    assert answer.text == "came through"
    assert (b"x-of-mine", b"caf\xe9") in seen


@pytest.mark.parametrize("given", [b"", b"  "])
async def test_a_blank_request_id_is_dropped_so_that_serve_draws_one(given: bytes) -> None:
    _, seen = await headers_seen([(b"x-request-id", given), (b"x-of-mine", b"")])
    names = [name for name, _ in seen]
    assert b"x-request-id" not in names
    assert b"x-of-mine" in names


@pytest.mark.parametrize(("given", "passes"), [(b"caf\xe9", False), (b"cafe", True)])
async def test_a_socket_with_such_a_header_does_not_open(given: bytes, passes: bool) -> None:
    came: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        came.append(message["type"])

    scope = {"type": "websocket", "path": "/x", "headers": [(b"x-request-id", given)]}
    await ShapedErrors(app)(scope, receive, send)
    assert came == ["websocket.accept" if passes else "websocket.close"]


@pytest.mark.parametrize("status", [200, 404, 503])
async def test_what_an_application_answers_passes_untouched(status: int) -> None:
    answer = await answer_of(PlainTextResponse("its own", status))
    assert (answer.status_code, answer.text) == (status, "its own")
    pieces = StreamingResponse(iter([b"a", b"b"]), media_type="audio/mpeg")
    assert (await answer_of(pieces)).content == b"ab"


async def test_the_proxys_own_pages_pass_untouched() -> None:
    answer = await answer_of(proxy_saying("This node is being drained.", 503), "/-/healthz")
    assert answer.text == "This node is being drained."
