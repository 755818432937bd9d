"""A reply for a caller on an asyncio loop.

The owner thread leaves events in a mailbox and rings the loop; the caller, on the loop's thread, empties the mailbox.
While a ring is under way further events cost nothing, so many chunks of one cycle wake the loop once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from voxr_ray.engine.reply import Ending, Event, Reply, T, unwrap
from voxr_ray.messages import AudioChunk


class AsyncReply(Reply[T]):
    """Await :meth:`result`, or iterate over the chunks. Create it on the loop that will consume it.

    As an asynchronous context manager it cancels on the way out. A caller whose task is cancelled while it waits
    here counts as having left, so no wrapper can forget to say so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        # Appended by the owner thread under the reply's lock, taken by the loop's thread; a deque needs no more.
        self._mail: deque[Event[T]] = deque()
        self._rung = False
        self._chunks: deque[AudioChunk] = deque()
        self._ending: Ending[T] | None = None

    @property
    def pending_chunks(self) -> int:
        """Chunks delivered and not yet taken: how far the caller is behind. Nothing here bounds it but the take."""
        return len(self._chunks) + sum(isinstance(event, AudioChunk) for event in list(self._mail))

    async def result(self) -> T:
        """Wait for the terminal event.

        Raises:
            VoxrError: The job failed.
        """
        while self._ending is None:
            await self._wait()
        return unwrap(self._ending)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioChunk:
        while not self._chunks:
            if self._ending is not None:
                unwrap(self._ending)
                raise StopAsyncIteration
            await self._wait()
        return self._chunks.popleft()

    async def pulses(self, period_s: float) -> AsyncIterator[AudioChunk | None]:
        """Iterate over the chunks, and in between say every so often that there is none yet.

        It ends after the last chunk; a job without chunks gives pulses until it is over, so that :meth:`result` then
        waits no longer.

        Args:
            period_s: Longest time without an item.

        Yields:
            Chunks in order; ``None`` for every period without one.

        Raises:
            VoxrError: The job failed.
        """
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self._ending is not None:
                unwrap(self._ending)
                return
            # Not by cancelling the wait: that would say that the caller has left.
            due_s = self._loop.time() + period_s
            alarm = self._loop.call_at(due_s, self._news.set)
            try:
                await self._wait()
            finally:
                alarm.cancel()
            # A bell that rang for mail already taken wakes this too, and is no pulse.
            if not self._chunks and self._ending is None and self._loop.time() >= due_s:
                yield None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def _wait(self) -> None:
        try:
            await self._news.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._news.clear()
        self._sort_mail()

    def _sort_mail(self) -> None:
        while self._mail:
            event = self._mail.popleft()
            if isinstance(event, AudioChunk):
                self._chunks.append(event)
            else:
                self._ending = event

    def _deliver(self, event: Event[T]) -> None:
        self._mail.append(event)
        if not self._rung:
            self._rung = True
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        # Lowered before the mail is looked at: an event that arrives in between rings again, and is never missed.
        self._rung = False
        self._news.set()
