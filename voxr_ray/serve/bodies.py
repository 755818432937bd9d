"""Reading request bodies: each up to a limit and a time, and all of them together up to another limit.

Runs on a router's event loop. Without a common limit, callers who are each within theirs could together fill the
memory of the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ray.exceptions import ActorDiedError, TaskCancelledError
from starlette.requests import ClientDisconnect, Request

from voxr_ray.errors import Cancelled, Overloaded
from voxr_ray.serve.http_errors import BodyTooLarge, RequestTimeout

_RETRY_AFTER_S = 1.0

LEFT = (ClientDisconnect, TaskCancelledError, ActorDiedError)
"""What reading a body raises when its caller leaves. Serve cancels the call that fetches the body from its proxy and
the request itself at one time: where the call is first, its error arrives here, and would leave as a failure that
nobody waits for any more. A proxy that died took its callers with it."""


class Bodies:
    """The bodies a router holds.

    Args:
        most_bytes: Of one body.
        most_held_bytes: Of all bodies that are being read or worked on.
    """

    def __init__(self, most_bytes: int, most_held_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._most_held_bytes = most_held_bytes
        self.held_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request, deadline: float) -> AsyncGenerator[bytes, None]:
        """Read a body, which may lie about its length, and count it for as long as the context lasts.

        Args:
            request: Whose body.
            deadline: Time of the event loop until which it must have arrived.

        Raises:
            BodyTooLarge: It is longer than allowed; nothing beyond the limit is read.
            Overloaded: Too much is held already.
            RequestTimeout: It did not arrive in time.
            Cancelled: The caller left.
        """
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._most_bytes:
            raise self._too_large()
        counted = 0
        try:
            body = bytearray()
            try:
                async with asyncio.timeout_at(deadline):
                    async for part in request.stream():
                        counted += len(part)
                        self.held_bytes += len(part)
                        if counted > self._most_bytes:
                            raise self._too_large()
                        if self.held_bytes > self._most_held_bytes:
                            raise Overloaded(
                                f"the bodies of running requests hold more than {self._most_held_bytes} bytes: "
                                "try again later",
                                retry_after_s=_RETRY_AFTER_S,
                            )
                        body += part
            except LEFT as error:
                raise Cancelled("the caller left while sending the body") from error
            except TimeoutError as error:
                raise RequestTimeout("the body did not arrive within the time a request may take") from error
            yield bytes(body)
        finally:
            self.held_bytes -= counted

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._most_bytes} bytes, the most that is read")
