"""Renders as an ingress makes them: sent where the router behind the handle chooses, and sent again if they move.

A render moves as long as it has no slot. Then it has made no audio, so sending it again changes nothing but its wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray.serve.handle import DeploymentHandle

from voxr_ray.errors import Overloaded, VoxrError
from voxr_ray.messages import SynthRequest
from voxr_ray.serve.routing.desk import Call
from voxr_ray.serve.routing.values import MOST_REFUSALS, CallTag, ReplicaName, Wish, Withdrawn
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.values import Beat

_log = logging.getLogger(__name__)


class RoutedReplicas(Replicas):
    """The replicas behind a handle whose router is :class:`~voxr_ray.serve.routing.request_router.SamplerRouter`.

    Args:
        handle: Handle of the replica deployment.
    """

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        super().__init__(handle)
        self._name = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()

    async def stream(self, method: str, *args: Any) -> AsyncGenerator[Any, None]:
        """Call a generator method; see :meth:`Replicas.stream`. A render's first argument is its request."""
        if not (args and isinstance(args[0], SynthRequest)):
            async with aclosing(super().stream(method, *args)) as items:
                async for item in items:
                    yield item
            return
        asking: list[asyncio.Task[None]] = []
        tag = CallTag(self._name, next(self._numbers))
        call = Call(
            tag, Wish.of(args[0]), lambda source: asking.append(asyncio.create_task(self._ask_back(call, source)))
        )
        refusals = 0
        started = False
        try:
            while True:
                try:
                    async with aclosing(super().stream(method, *args, call)) as items:
                        async for item in items:
                            # A beat only says that it waits there: it may still be asked back.
                            if not started and not isinstance(item, Beat):
                                started = True
                                call.seated()
                            yield item
                    return
                except Withdrawn:
                    if started:
                        raise
                except Overloaded:
                    refusals += 1
                    if started or refusals >= MOST_REFUSALS or not call.refused():
                        raise
        finally:
            call.close()
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask_back(self, call: Call, source: str) -> None:
        """Take a render back from the replica it waits at. If that works, its stream ends with ``Withdrawn``."""
        try:
            (given,) = await self.call("withdraw", ReplicaName(source), (call.tag,))
        except VoxrError as error:
            _log.info("a render could not be asked back: %s", error)
            call.stays()
        else:
            if not given:
                call.seated()
