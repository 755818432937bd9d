"""A deployment's calls without its actors: what a router needs of its replicas, of objects in its own process.

For programs that speak without a cluster, and for tests of everything but Ray. The calls run on the caller's event
loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from voxr_ray.serve.library import Library
from voxr_ray.serve.replica import Replica


class InProcess:
    """Stands in for :class:`voxr_ray.serve.transport.Replicas`.

    Args:
        replica: What the calls go to.
    """

    def __init__(self, replica: Replica | Library) -> None:
        self.replica = replica

    async def call(self, method: str, *args: Any, by_reference: bool = False) -> Any:
        """Call a method and await its answer."""
        return await getattr(self.replica, method)(*args)

    async def stream(self, method: str, *args: Any) -> AsyncGenerator[Any, None]:
        """Call a method that yields."""
        async for item in getattr(self.replica, method)(*args):
            yield item

    async def broadcast(self, method: str, *args: Any, timeout_s: float) -> list[Any]:
        """Call a method of all replicas: of the one there is."""
        return [await self.call(method, *args)]
