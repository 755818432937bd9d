"""Replicas that are lost at chosen moments: between a router and a local replica, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxr_ray.errors import ReplicaLost, VoxrError
from voxr_ray.serve.in_process import InProcess
from voxr_ray.serve.values import Beat


@dataclass(frozen=True)
class Loss:
    """An attempt that fails.

    Attributes:
        after: Chunks that are passed on before.
        early: Whether the replica is lost before it has caught up, if another one was lost before.
        error: What is raised then; ``None`` hangs instead, ``"end"`` ends as if it were complete.
        renders: Whether the replica is asked at all.
    """

    after: int = 0
    error: VoxrError | str | None = field(default_factory=lambda: ReplicaLost("it died"))
    renders: bool = True
    early: bool = False


@dataclass
class Attempt:
    """One streaming call as the router made it."""

    method: str
    arguments: tuple[Any, ...]
    samples: int = 0
    closed: bool = False


class FlakyReplicas:
    """Passes calls on; the streaming ones fail as ``losses`` say, in this order, and then no more.

    Args:
        replicas: Who does the work.
        losses: One for each streaming call.
        calls: Errors of the calls that do not stream, but for ``info``, one for each.
    """

    def __init__(self, replicas: InProcess, losses: Sequence[Loss], calls: Sequence[VoxrError] = ()) -> None:
        self._replicas = replicas
        self.losses = list(losses)
        self.calls = list(calls)
        self.attempts: list[Attempt] = []

    async def call(self, method: str, *args: Any, by_reference: bool = False) -> Any:
        if method != "info" and self.calls:
            raise self.calls.pop(0)
        return await self._replicas.call(method, *args)

    async def stream(self, method: str, *args: Any) -> AsyncGenerator[Any, None]:
        loss = self.losses.pop(0) if self.losses else None
        attempt = Attempt(method, args)
        self.attempts.append(attempt)
        left = -1 if loss is None else loss.after
        try:
            if loss is not None and loss.early and args[1] is not None:
                yield Beat()
                await _fail(loss)
                return
            if loss is None or loss.renders:
                if left == 0:
                    await _fail(loss)
                    return
                async for item in self._replicas.stream(method, *args):
                    if not isinstance(item, Beat):
                        attempt.samples += len(item.samples)
                        left -= 1
                    yield item
                    if left == 0:
                        await _fail(loss)
                        return
            else:
                await _fail(loss)
        finally:
            attempt.closed = True


async def _fail(loss: Loss | None) -> None:
    if loss is None or loss.error is None:
        await asyncio.Event().wait()
    elif isinstance(loss.error, VoxrError):
        raise loss.error
