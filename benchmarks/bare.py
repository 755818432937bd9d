"""Two deployments of Ray Serve that do nothing but pass chunks on: what the same hops cost anybody.

In a module of its own, since workers of the cluster import it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

CHUNK_BYTES = 5120
"""Those of a patch of the default checkpoint in 16-bit samples."""


@serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.1})
class Source:
    """Where the chunks come from."""

    async def chunks(self, count: int) -> AsyncIterator[bytes]:
        """So many of them, at once."""
        for _ in range(count):
            yield bytes(CHUNK_BYTES)


@serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.1})
class Passage:
    """Passes them on by HTTP; asked for as many as the query's ``chunks``."""

    def __init__(self, source: Any) -> None:
        self._chunks = source.options(method_name="chunks", stream=True, _by_reference=False)

    async def __call__(self, request: Request) -> StreamingResponse:
        """The answer, chunk by chunk as they come."""
        return StreamingResponse(self._chunks.remote(int(request.query_params["chunks"])))


def bare_application() -> Any:
    """The application, unbuilt: :func:`ray.serve.run` takes it."""
    return Passage.bind(Source.bind())
