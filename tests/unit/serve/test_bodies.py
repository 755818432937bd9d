"""Bodies are bounded one by one and all together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from ray.exceptions import ActorDiedError, TaskCancelledError
from starlette.requests import Request

from voxr_ray.errors import Cancelled, Overloaded
from voxr_ray.serve.bodies import Bodies
from voxr_ray.serve.http_errors import BodyTooLarge, RequestTimeout


class Caller:
    """Sends a body when the test says so."""

    def __init__(self, declared: int | None = None) -> None:
        self._messages: asyncio.Queue[dict[str, object] | Exception] = asyncio.Queue()
        headers = [] if declared is None else [(b"content-length", str(declared).encode())]
        self.request = Request({"type": "http", "method": "POST", "headers": headers}, self._receive)

    def send(self, part: bytes, *, more: bool = False) -> None:
        self._messages.put_nowait({"type": "http.request", "body": part, "more_body": more})

    async def _receive(self) -> dict[str, object]:
        message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        return message

    def fail(self, error: Exception) -> None:
        self._messages.put_nowait(error)

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


def soon() -> float:
    return asyncio.get_running_loop().time() + 60


@pytest.fixture
async def bodies() -> AsyncGenerator[Bodies, None]:
    made = Bodies(most_bytes=10, most_held_bytes=15)
    yield made
    assert made.held_bytes == 0, "a body is counted although nobody holds it"


async def test_a_body_is_counted_while_it_is_worked_on(bodies: Bodies) -> None:
    caller = Caller()
    caller.send(b"12345", more=True)
    caller.send(b"67890")
    async with bodies.read(caller.request, soon()) as body:
        assert body == b"1234567890"
        assert bodies.held_bytes == 10


@pytest.mark.parametrize("declared", [None, 3, 11])
async def test_one_that_is_too_long_is_refused_whatever_it_declared(bodies: Bodies, declared: int | None) -> None:
    caller = Caller(declared)
    caller.send(b"1234567890", more=True)
    caller.send(b"1")
    with pytest.raises(BodyTooLarge):
        async with bodies.read(caller.request, soon()):
            pass


async def test_all_together_are_bounded_and_room_comes_back(bodies: Bodies) -> None:
    first, second, third = Caller(), Caller(), Caller()
    for caller in (first, second, third):
        caller.send(b"12345678")
    async with bodies.read(first.request, soon()):
        with pytest.raises(Overloaded) as refused:
            async with bodies.read(second.request, soon()):
                pass
        assert refused.value.retry_after_s
    async with bodies.read(third.request, soon()) as body:
        assert body == b"12345678"


async def test_a_caller_who_leaves_or_dawdles_holds_nothing(bodies: Bodies) -> None:
    leaver, dawdler = Caller(), Caller()
    leaver.send(b"123", more=True)
    leaver.leave()
    with pytest.raises(Cancelled):
        async with bodies.read(leaver.request, soon()):
            pass
    dawdler.send(b"123", more=True)
    with pytest.raises(RequestTimeout):
        async with bodies.read(dawdler.request, asyncio.get_running_loop().time()):
            pass


@pytest.mark.parametrize("error", [TaskCancelledError(), ActorDiedError()], ids=lambda error: type(error).__name__)
async def test_one_whose_proxy_gives_up_has_left(bodies: Bodies, error: Exception) -> None:
    """Serve cancels the fetch of a body together with its request; the fetch may notice first."""
    caller = Caller()
    caller.send(b"123", more=True)
    caller.fail(error)
    with pytest.raises(Cancelled):
        async with bodies.read(caller.request, soon()):
            pass


async def test_a_failure_of_the_work_gives_the_room_back(bodies: Bodies) -> None:
    caller = Caller()
    caller.send(b"123")
    with pytest.raises(RuntimeError, match="broken"):
        async with bodies.read(caller.request, soon()):
            raise RuntimeError("broken")
