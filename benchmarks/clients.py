"""Those who ask for speech over a deployment handle, beside those over HTTP of the package."""

from __future__ import annotations

import time
from typing import Any

from voxr_ray.cli.loads import Call


class HandleSpeaker:
    """Speaks through the router's handle.

    Args:
        router: The handle.
        fields: What all requests share, as fields of :class:`~voxr_ray.messages.SynthRequest`.
    """

    def __init__(self, router: Any, fields: dict[str, Any]) -> None:
        self._method = router.options(method_name="synthesize_stream", stream=True)
        self._fields = fields

    async def __call__(self, fields: dict[str, Any]) -> Call:
        """Render one request."""
        from ray.exceptions import RayError

        from voxr_ray.errors import VoxrError
        from voxr_ray.messages import SynthRequest

        given = self._fields | fields
        request = SynthRequest(text=given.pop("input"), **given)
        call = Call(time.perf_counter())
        stream = self._method.remote(request)
        try:
            async for chunk in stream:
                call.player.take(len(chunk.samples) / chunk.sample_rate_hz, time.perf_counter())
        except (RayError, VoxrError) as error:
            call.error = f"{type(error).__name__}: {error}"
        finally:
            stream.cancel()
        call.ended_s = time.perf_counter()
        return call
