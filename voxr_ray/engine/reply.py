"""Replies: how the events of one job reach the caller who waits for it.

A reply belongs to one job. The owner thread speaks into it (:meth:`Reply.chunk`, :meth:`Reply.done`,
:meth:`Reply.fail`); the caller listens on any other thread, or on an asyncio loop, through a subclass. A third party,
the watchdog, may end it when the owner thread hangs (:meth:`Reply.abort`). Whoever comes first ends the reply; what
comes after a terminal event is never delivered.

Nothing here blocks the owner thread, and a consumer that fails (closed event loop, raising callback) hurts nobody
else: it counts as a caller who left.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Generic, Self, TypeAlias, TypeVar

from voxr_ray.errors import Cancelled, VoxrError
from voxr_ray.messages import AudioChunk

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Terminal: the job is complete."""

    result: T


@dataclass(frozen=True, slots=True)
class Failed:
    """Terminal: the job ended without a result. A caller who left gets :class:`Cancelled` in it."""

    error: VoxrError


Ending: TypeAlias = Done[T] | Failed
Event: TypeAlias = AudioChunk | Done[T] | Failed


class _State(Enum):
    FRESH = "no job yet"
    OPEN = "its job is under way"
    ENDED = "the owner thread ended it"
    ABORTED = "the watchdog ended it; the owner thread may not know"


class Reply(ABC, Generic[T]):
    """One job's line to its caller, with exactly one terminal event.

    The engine binds it at submission. Results are a :class:`~voxr_ray.messages.SynthResult` for a buffered render, a
    :class:`~voxr_ray.messages.Summary` for a streamed one (which is also on its last chunk) and features for an
    encode.
    """

    def __init__(self) -> None:
        # Held while an event is delivered, so that nothing can follow a terminal event.
        self._lock = threading.Lock()
        self._state = _State.FRESH
        self._on_end: Callable[[Ending[T]], None] = lambda ending: None
        self._left = threading.Event()

    # The caller's side.

    def cancel(self) -> None:
        """Say that the caller has left. Any thread, any number of times, at any time.

        The engine lets go of the job at its next cycle, and ends the reply with :class:`Cancelled` if nothing else
        ended it before.
        """
        self._left.set()

    @property
    def cancelled(self) -> bool:
        """Whether the caller has left."""
        return self._left.is_set()

    # The engine's side.

    def bind(self, on_end: Callable[[Ending[T]], None]) -> None:
        """Tie the reply to its one job.

        Args:
            on_end: Called once with the terminal event, before the caller sees it, by the thread that ends the
                reply.

        Raises:
            ValueError: It has a job already.
        """
        with self._lock:
            if self._state is not _State.FRESH:
                raise ValueError("a reply serves one job: make a new one for every submission")
            self._state = _State.OPEN
            self._on_end = on_end

    def unbind(self) -> None:
        """Undo :meth:`bind` for a job that was refused at submission, so that the caller may try again."""
        with self._lock:
            if self._state is _State.OPEN:
                self._state = _State.FRESH

    def chunk(self, chunk: AudioChunk) -> None:
        """Deliver audio. Owner thread only."""
        with self._lock:
            if self._state is not _State.ABORTED:
                self._expect_open()
                self._hand_over(chunk)

    def done(self, result: T) -> None:
        """End with a result. Owner thread only."""
        self._end(Done(result))

    def fail(self, error: VoxrError) -> None:
        """End with an error. Owner thread only."""
        self._end(Failed(error))

    def abort(self, error: VoxrError) -> bool:
        """End from outside the owner thread.

        Returns:
            Whether this call ended it; ``False`` if it had ended before.
        """
        failed = Failed(error)
        with self._lock:
            if self._state is not _State.OPEN:
                return False
            self._state = _State.ABORTED
            self._on_end(failed)
            self._hand_over(failed)
        return True

    @abstractmethod
    def _deliver(self, event: Event[T]) -> None:
        """Pass one event on. Must not block; whatever it raises counts as the caller having left."""

    def _end(self, ending: Ending[T]) -> None:
        with self._lock:
            if self._state is _State.ABORTED:
                return
            self._expect_open()
            self._state = _State.ENDED
            # First the books, then the caller: one who submits again on this news must find the room.
            self._on_end(ending)
            self._hand_over(ending)

    def _expect_open(self) -> None:
        if self._state is not _State.OPEN:
            raise RuntimeError(f"engine bug: an event for a reply in the state {self._state.value!r}")

    def _hand_over(self, event: Event[T]) -> None:
        try:
            self._deliver(event)
        except Exception:
            _logger.debug("a reply's consumer failed and counts as gone", exc_info=True)
            self.cancel()


class ThreadReply(Reply[T]):
    """A reply for a caller on a thread: :meth:`result`, or iteration over the chunks.

    As a context manager it cancels on the way out, so that a caller who stops listening early frees the slot.
    """

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Condition()
        self._chunks: deque[AudioChunk] = deque()
        self._ending: Ending[T] | None = None

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the terminal event.

        Raises:
            VoxrError: The job failed.
            TimeoutError: It has not ended within ``timeout_s``; the job goes on.
        """
        with self._news:
            self._news.wait_for(lambda: self._ending is not None, timeout_s)
            ending = self._ending
        return unwrap(ending)

    def __iter__(self) -> Iterator[AudioChunk]:
        """Chunks as they arrive; raises the job's error in their place."""
        while True:
            with self._news:
                self._news.wait_for(lambda: self._chunks or self._ending is not None)
                if not self._chunks:
                    ending = self._ending
                    break
                chunk = self._chunks.popleft()
            yield chunk
        unwrap(ending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _deliver(self, event: Event[T]) -> None:
        with self._news:
            if isinstance(event, AudioChunk):
                self._chunks.append(event)
            else:
                self._ending = event
            self._news.notify_all()


def unwrap(ending: Ending[T] | None) -> T:
    """The result in a terminal event.

    Raises:
        VoxrError: The event is a failure.
        TimeoutError: There is no event.
    """
    if ending is None:
        raise TimeoutError("the job has not ended yet")
    if isinstance(ending, Failed):
        raise ending.error
    return ending.result


def gone() -> Cancelled:
    """The error that ends the reply of a caller who left."""
    return Cancelled("the caller left before the result was complete")
