"""How far a session, or a stream, may be ahead of its reader.

Serve takes every frame at once and keeps what the client has not read, so a blocked socket is never felt here. Two
other measures bound what is under way:

- *Credit*: a client that sets ``max_unread_bytes`` and confirms what it has read (``audio.read``) never has more
  than that outstanding (a single larger frame excepted).
- *Pace*: for any other client audio is sent at most ``lead_s`` seconds ahead of real time, at which it plays. Streamed
  answers have this measure alone, where the operator sets it.

While a frame waits, no chunk is taken and no further sentence is given to a replica; the one sentence under way is
rendered to its end and kept here. Runs on a router's event loop.
"""

from __future__ import annotations

import asyncio

from voxr_ray.errors import InvalidRequest


class Flow:
    """The account of one session or stream.

    Args:
        lead_s: Seconds of audio that may be ahead of real time, without credit.
    """

    def __init__(self, lead_s: float) -> None:
        self.window_bytes: int | None = None
        self._lead_s = lead_s
        self._sent = self._read = 0
        self._ahead_s = 0.0
        self._at_s = asyncio.get_running_loop().time()
        self._news = asyncio.Event()

    def read(self, total_bytes: int) -> None:
        """The client has read that much since the session began.

        Raises:
            InvalidRequest: That is more than it was sent, or less than it has said before.
        """
        if not self._read <= total_bytes <= self._sent:
            raise InvalidRequest(
                f"bytes is {total_bytes}: it counts all audio read so far, {self._sent} bytes were sent", param="bytes"
            )
        self._read = total_bytes
        self._news.set()

    async def room(self, size_bytes: int, seconds: float) -> None:
        """Wait until a frame may be sent, and count it as sent."""
        if self.window_bytes is None:
            now_s = asyncio.get_running_loop().time()
            self._ahead_s = max(0.0, self._ahead_s - (now_s - self._at_s))
            self._at_s = now_s
            if self._ahead_s > self._lead_s:
                await asyncio.sleep(self._ahead_s - self._lead_s)
            self._ahead_s += seconds
        else:
            while self._sent > self._read and self._sent + size_bytes - self._read > self.window_bytes:
                self._news.clear()
                await self._news.wait()
        self._sent += size_bytes
