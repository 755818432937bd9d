"""The table from class to status, and what becomes of the exceptions of Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError

from voxr_ray import errors
from voxr_ray.errors import EngineError, Overloaded, ReplicaLost, Unavailable, VoxrError
from voxr_ray.serve import transport
from voxr_ray.serve.http_errors import UnknownField, error_response, status_of
from voxr_ray.serve.logs import request_id_of, set_up_logs
from voxr_ray.serve.responses import StreamBroken
from voxr_ray.serve.transport import Replicas, translate


def tree(root: type[VoxrError]) -> list[type[VoxrError]]:
    return [root, *(cls for child in root.__subclasses__() for cls in tree(child))]


@pytest.mark.parametrize("cls", tree(VoxrError), ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_and_a_shape(cls: type[VoxrError]) -> None:
    error = pickle.loads(pickle.dumps(cls("what, limit, remedy", param="text", retry_after_s=0.2)))  # noqa: S301
    answer = error_response(error)
    body = json.loads(bytes(answer.body))["error"]
    assert answer.status_code == status_of(error) >= 400
    assert body["message"] == "what, limit, remedy"
    if cls is UnknownField:
        assert body["param"] == "text", "an unknown field keeps the caller's name"
    else:
        assert body["param"] == "input", "the text of a request is the input of its body"
    assert body["type"]
    assert body["code"]
    assert answer.headers["retry-after"] == "1"
    assert (answer.status_code < 500) == issubclass(
        cls, errors.RequestError | errors.Cancelled
    ) or answer.status_code == 408


def test_an_overloaded_server_says_when_to_come_back() -> None:
    answer = error_response(Overloaded("full", retry_after_s=2.3))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


def task_error(cause: Exception) -> RayTaskError:
    make: Any = RayTaskError  # untyped in Ray
    error: RayTaskError = make("f", "traceback", cause).as_instanceof_cause()
    return error


def rpc_error(code: str) -> Exception:
    error: Exception = grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), grpc.aio.Metadata())
    return error


def test_only_failures_of_a_replica_are_retried_elsewhere() -> None:
    assert {cls.__name__ for cls in tree(VoxrError) if cls.elsewhere and not cls.__name__.startswith("_")} == {
        "EngineStopped",
        "ReplicaLost",
        "ResumeMismatch",
    }


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Overloaded("full", retry_after_s=1), Overloaded),
        (task_error(Overloaded("full")), Overloaded),
        (task_error(errors.BadAudio("no")), errors.BadAudio),
        (task_error(ZeroDivisionError("x")), EngineError),
        (BackPressureError(5, 5), Overloaded),
        (ActorDiedError(), ReplicaLost),
        (ActorUnavailableError("gone", b"x" * 16), ReplicaLost),
        (RequestCancelledError("id"), ReplicaLost),
        (TaskCancelledError(), ReplicaLost),
        (DeploymentUnavailableError("id"), Unavailable),
        (rpc_error("UNAVAILABLE"), ReplicaLost),
        (rpc_error("RESOURCE_EXHAUSTED"), EngineError),
        (RuntimeError("what"), EngineError),
    ],
)
def test_exceptions_of_ray_become_errors_of_ours(error: Exception, expected: type[VoxrError]) -> None:
    assert type(translate(error)) is expected


class FakeResponse:
    """A handle's response: items, an exception, or nothing for ever."""

    def __init__(self, items: list[Any], end: BaseException | None = None, hang: bool = False) -> None:
        self.items, self.end, self.hang = items, end, hang
        self.cancelled = 0

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._run()

    async def _run(self) -> AsyncIterator[Any]:
        for item in self.items:
            yield item
        if self.hang:
            await asyncio.Event().wait()
        if self.end is not None:
            raise self.end

    def __await__(self) -> Any:
        return self._result().__await__()

    async def _result(self) -> Any:
        async for _ in self._run():
            pass
        return self.items[-1]

    def cancel(self) -> None:
        self.cancelled += 1
        if isinstance(self.end, BackPressureError):
            raise self.end  # what Serve does for a call that was never assigned


class FakeHandle:
    def __init__(self, response: FakeResponse) -> None:
        self.response = response
        self.chosen: list[dict[str, Any]] = []

    def options(self, **options: Any) -> FakeHandle:
        self.chosen.append(options)
        return self

    def remote(self, *args: Any) -> FakeResponse:
        return self.response


def replicas(*items: Any, **ending: Any) -> tuple[Replicas, FakeResponse, FakeHandle]:
    response = FakeResponse(list(items), **ending)
    handle = FakeHandle(response)
    return Replicas(handle), response, handle  # type: ignore[arg-type]


class TestTransport:
    async def test_a_whole_stream_passes_by_value(self) -> None:
        target, response, handle = replicas(1, 2, 3)
        assert [item async for item in target.stream("m")] == [1, 2, 3]
        assert response.cancelled == 1
        assert handle.chosen == [{"method_name": "m", "stream": True, "_by_reference": False}]
        assert await target.call("n") == 3
        assert handle.chosen[-1] == {"method_name": "n", "stream": False, "_by_reference": False}

    async def test_leaving_cancels(self) -> None:
        target, response, _ = replicas(1, 2, 3)
        async with aclosing(target.stream("m")) as items:
            assert await anext(items) == 1
        assert response.cancelled == 1

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_cancelled_consumer_cancels_and_stays_cancelled(self, stream: bool) -> None:
        target, response, _ = replicas(hang=True)

        async def consume() -> None:
            if stream:
                async for _ in target.stream("m"):
                    pass
            else:
                await target.call("m")

        task = asyncio.create_task(consume())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert response.cancelled == 1

    async def test_a_cancellation_from_the_replica_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transport, "_GRACE_S", 0.01)
        target, response, _ = replicas(1, end=asyncio.CancelledError())
        with pytest.raises(EngineError, match="stopped working"):
            [item async for item in target.stream("m")]
        with pytest.raises(EngineError, match="stopped working"):
            await target.call("m")
        assert response.cancelled == 2

    async def test_one_that_comes_just_before_our_own_is_ours(self) -> None:
        target, response, _ = replicas(1, end=asyncio.CancelledError())

        async def consume() -> None:
            [item async for item in target.stream("m")]

        task = asyncio.create_task(consume())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done(), "it waits for a moment"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert response.cancelled == 1

    @pytest.mark.parametrize("end", [BackPressureError(5, 5), ActorDiedError(), Overloaded("full")])
    async def test_failures_are_translated(self, end: Exception) -> None:
        target, response, _ = replicas(1, end=end)
        expected = type(translate(end))
        with pytest.raises(expected):
            [item async for item in target.stream("m")]
        with pytest.raises(expected):
            await target.call("m")
        assert response.cancelled == 2


def test_a_request_has_an_id_that_is_its_own() -> None:
    assert request_id_of({"x-request-id": " mine "}) == "mine"
    assert request_id_of({"x-request-id": "x" * 500}) == "x" * 128
    drawn = {request_id_of(headers) for headers in ({}, {"x-request-id": ""}, {"x-request-id": "  "})}
    assert len(drawn) == 3
    assert all(drawn)


def test_refusals_are_one_line_in_the_log_and_failures_a_traceback() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    logger = logging.getLogger("ray.serve")
    set_up_logs()
    set_up_logs()
    logger.addHandler(handler)
    try:
        for error in (Overloaded("full"), EngineError("broken"), StreamBroken("lost")):
            try:
                raise error
            except (VoxrError, StreamBroken):
                logger.exception("Request failed.")
    finally:
        logger.removeHandler(handler)
    refused, failed, broken = records
    assert (broken.levelname, broken.getMessage(), broken.exc_info) == ("INFO", "Stream broken: lost", None)
    assert (refused.levelname, refused.getMessage(), refused.exc_info) == ("INFO", "Request refused: full", None)
    assert failed.levelname == "ERROR"
    assert failed.exc_info
