"""Calls from a router to the replicas: by value, cancelled when the caller leaves, with errors of this project only.

This is the only module that knows how Serve moves values. Three facts shape it:

- Serve does not cancel a call whose consumer goes away. Whoever starts one here ends it in ``finally``.
- By-value messages take half the time of the object store's and their cancellation is never late, but one message
  must stay under 4 MiB. Whole results therefore travel in pieces too.
- A cancellation that began on the replica's side reaches the caller as ``CancelledError``, like its own.

Runs on the event loop of the deployment that owns the handle.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc  # type: ignore[import-untyped]
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from voxr_ray.errors import EngineError, Overloaded, ReplicaLost, Unavailable, VoxrError

_RETRY_AFTER_S = 1.0
_GRACE_S = 1.0
_STOPPED = "the replica stopped working on this request"
_FOREIGN = (RayError, RayServeException, grpc.aio.AioRpcError)
"""Families of exceptions that are not this project's."""

_LOST = (
    RayActorError,
    ObjectLostError,
    WorkerCrashedError,
    NodeDiedError,
    LocalRayletDiedError,
    TaskCancelledError,
    RequestCancelledError,
)
"""What says that the other side is gone, or has let go of the call. Ours is never among them: a caller who leaves
gets ``CancelledError``."""

_BROKEN = {grpc.StatusCode[name] for name in ("UNAVAILABLE", "CANCELLED", "ABORTED", "INTERNAL", "UNKNOWN")}
"""Status codes of a connection that broke. Others say that the message itself is at fault, and it would be anywhere."""


class Replicas:
    """The replicas behind one handle.

    Args:
        handle: Handle of the replica deployment.
    """

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._methods: dict[tuple[str, bool, bool], DeploymentHandle[Any]] = {}

    async def call(self, method: str, *args: Any, by_reference: bool = False) -> Any:
        """Call a method of one replica and wait for its result.

        Args:
            method: Name of a coroutine method; its result must pickle to less than 4 MiB.
            *args: Its arguments, with the same limit.
            by_reference: Take the way through the object store, which is slower and has no limit.

        Raises:
            VoxrError: What the method raised, or what happened on the way.
        """
        response = self._method(method, stream=False, by_reference=by_reference).remote(*args)
        async with _under_way(response):
            return await response

    async def stream(self, method: str, *args: Any) -> AsyncGenerator[Any, None]:
        """Call a generator method of one replica and pass its items on.

        Close the iterator (``contextlib.aclosing``) when leaving early: that cancels the call, whether it still
        waits for a replica, for its first item, or runs.

        Args:
            method: Name of an asynchronous generator method; each item must pickle to less than 4 MiB.
            *args: Its arguments, with the same limit.

        Raises:
            VoxrError: What the method raised, or what happened on the way.
        """
        response = self._method(method, stream=True).remote(*args)
        async with _under_way(response):
            async for item in response:
                yield item

    async def broadcast(self, method: str, *args: Any, timeout_s: float) -> list[Any]:
        """Call a method of every replica that runs now, and wait for their results, each for itself.

        Serve's own collection of the results is all or nothing: one frozen replica would hide the others.

        Args:
            method: Name of a coroutine method; its result must pickle to less than 4 MiB.
            *args: Its arguments, with the same limit.
            timeout_s: Seconds the replicas may take.

        Returns:
            A result for each replica, in no order; of one that failed or is late, the error. Empty without replicas.

        Raises:
            VoxrError: The replicas cannot be asked.
        """
        late = ReplicaLost(f"the replica did not answer within {timeout_s:g} s", retry_after_s=_RETRY_AFTER_S)
        response = self._method(method, stream=False).broadcast(method, *args)
        try:
            async with asyncio.timeout(timeout_s):
                results = await response._fetch_replica_results_async()
        except DeploymentUnavailableError:
            return []
        except TimeoutError as error:
            raise late from error
        except _FOREIGN as error:
            raise translate(error) from error
        calls = [asyncio.ensure_future(result.get_async()) for result in results]
        try:
            if calls:
                await asyncio.wait(calls, timeout=timeout_s)
            return [_outcome(call) if call.done() else late for call in calls]
        finally:
            for call, result in zip(calls, results, strict=True):
                if not call.done():
                    call.cancel()
                    result.cancel()

    def _method(self, method: str, *, stream: bool, by_reference: bool = False) -> Any:
        key = (method, stream, by_reference)
        if key not in self._methods:
            self._methods[key] = self._handle.options(method_name=method, stream=stream, _by_reference=by_reference)
        return self._methods[key]


def _outcome(call: asyncio.Future[Any]) -> Any:
    """The result of a call that is done, or the error of this project that stands for its failure."""
    if call.cancelled():
        return EngineError(_STOPPED)
    error = call.exception()
    return call.result() if error is None else translate(error)


@contextlib.asynccontextmanager
async def _under_way(response: Any) -> AsyncGenerator[None, None]:
    """A call for as long as its caller listens: its failures become this project's, and it is ended on the way out."""
    try:
        yield
    except asyncio.CancelledError as error:
        await _raise_if_ours()
        raise ReplicaLost(_STOPPED, retry_after_s=_RETRY_AFTER_S) from error
    except _FOREIGN as error:
        raise translate(error) from error
    finally:
        _leave(response)


async def _raise_if_ours() -> None:
    """After a ``CancelledError``: raise it again if it is our own, return if it began at the replica.

    When a caller of ours leaves, Serve cancels the calls we made for it a moment before it cancels us. So one that
    does not look like ours gets a moment to become so.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(_GRACE_S)


def _leave(response: Any) -> None:
    """End a call, finished or not. A call that failed while being assigned raises here once more what it raised."""
    with contextlib.suppress(*_FOREIGN):
        response.cancel()


def translate(error: BaseException) -> VoxrError:
    """The error of this project that says what an exception of Ray or gRPC means to a caller."""
    if isinstance(error, RayTaskError):  # may be an instance of its cause's class, too
        cause = error.cause
        return cause if isinstance(cause, VoxrError) else EngineError(f"a replica failed: {type(cause).__name__}")
    if isinstance(error, VoxrError):
        return error
    if isinstance(error, BackPressureError):
        return Overloaded("too many requests are waiting for a replica", retry_after_s=_RETRY_AFTER_S)
    if isinstance(error, TaskCancelledError | RequestCancelledError):
        return ReplicaLost(_STOPPED, retry_after_s=_RETRY_AFTER_S)
    if isinstance(error, _LOST) or (isinstance(error, grpc.aio.AioRpcError) and error.code() in _BROKEN):
        return ReplicaLost("the replica that worked on this request was lost", retry_after_s=_RETRY_AFTER_S)
    if isinstance(error, DeploymentUnavailableError):
        return Unavailable("no replica is available: the last deployment failed", retry_after_s=_RETRY_AFTER_S)
    return EngineError(f"the call to a replica failed: {type(error).__name__}")
