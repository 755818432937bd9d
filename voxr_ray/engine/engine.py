"""The engine's front: what the rest of the program calls. Any thread.

Submissions are planned and refused on the caller's thread; everything else happens on the owner thread, and comes
back through the job's reply.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, overload

import numpy as np

from voxr_ray.engine.inbox import Inbox, Load
from voxr_ray.engine.model import ModelSpec, Padding, SlotModel
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.owner import Loaded, Owner
from voxr_ray.engine.record import Record
from voxr_ray.engine.reply import Reply
from voxr_ray.engine.ticket import EngineSnapshot, Ticket
from voxr_ray.errors import EngineStopped
from voxr_ray.messages import Recording, Summary, SynthRequest, SynthResult

_EXIT_TIMEOUT_S = 5.0


class Engine:
    """A model behind a queue: continuous batching on one owner thread.

    As a context manager it starts, and on the way out closes: in peace it lets everybody finish, after an exception
    it cancels them.

    Args:
        model_factory: Builds the model; called once, on the owner thread.
        options: How to batch, queue and stream.
        clock: Monotonic seconds; tests replace it.
    """

    def __init__(
        self,
        model_factory: Callable[[], SlotModel],
        options: EngineOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or EngineOptions()
        self.record = Record(self.options.record_steps, clock())
        self._clock = clock
        self._inbox = Inbox(
            width=self.options.max_batch,
            max_queue=self.options.max_queue,
            max_encodes=self.options.max_encode_queue,
            clock=clock,
        )
        self._owner = Owner(model_factory, self.options, self._inbox, self.record, clock)
        self._loaded: Loaded | None = None

    def start(self, timeout_s: float | None = None) -> Self:
        """Load the model and open the batch; returns when jobs can be submitted.

        Raises:
            VoxrError: It could not: the cause as it is if it is of the project's tree, else an EngineStopped.
        """
        # Also runs at the interpreter's exit, before it tears down what the thread uses.
        weakref.finalize(self, _end_thread, self._inbox, self._owner)
        self._loaded = self._owner.start(timeout_s)
        return self

    @property
    def spec(self) -> ModelSpec:
        """Facts of the loaded model."""
        return self._ready().spec

    @property
    def capacity(self) -> int:
        """Positions of one slot."""
        return self._ready().capacity

    @property
    def model(self) -> SlotModel:
        """The loaded model, to read its facts. Nothing but :meth:`SlotModel.plan` may be called from here."""
        return self._ready().model

    @property
    def load(self) -> Load:
        """Jobs inside, from submission to terminal event."""
        return self._inbox.load

    @property
    def running(self) -> bool:
        """Whether those inside will be served: it has neither stopped nor been given up."""
        return self._inbox.cause is None

    def snapshot(self) -> EngineSnapshot:
        """What the engine did so far and what it holds now. Cheap, picklable, any thread."""
        return EngineSnapshot(self.options.max_batch, self._inbox.load, self.record.snapshot())

    @overload
    def submit(
        self, request: SynthRequest, reply: Reply[SynthResult], *, stream: Literal[False], moved: bool = False
    ) -> Ticket: ...

    @overload
    def submit(
        self, request: SynthRequest, reply: Reply[Summary], *, stream: Literal[True], moved: bool = False
    ) -> Ticket: ...

    @overload
    def submit(self, request: SynthRequest, reply: Reply[Any], *, stream: bool, moved: bool = False) -> Ticket: ...

    def submit(self, request: SynthRequest, reply: Reply[Any], *, stream: bool, moved: bool = False) -> Ticket:
        """Accept a render, or refuse it here and now.

        Args:
            request: What to render.
            reply: Gets chunks and a :class:`Summary` if ``stream``, else one :class:`SynthResult`.
            stream: Whether audio is delivered while it is made. A streamed take is never taken again.
            moved: Whether an engine that had accepted it was lost: then it is let in beyond the queue, and goes
                ahead of those who wait.

        Raises:
            InvalidRequest: The text has no token.
            TooLarge: It does not fit a slot.
            Overloaded: Slots and queue are full.
            EngineStopped: The engine is closing, has stopped or has not started.
        """
        return self._ready().admission.submit(request, reply, stream=stream, moved=moved)

    def encode(self, recording: Recording, padding: Padding, reply: Reply[np.ndarray]) -> None:
        """Accept an encode, or refuse it here and now.

        Args:
            recording: What to encode. Features it already has are handed back as they are.
            padding: Where it is filled up to whole patches: prompts on the left, references on the right.
            reply: Gets float32 ``(patches, patch_size, feat_dim)``.

        Raises:
            Overloaded: Too many recordings are being encoded.
            EngineStopped: The engine is closing, has stopped or has not started.
        """
        self._ready().admission.encode(recording, padding, reply)

    def check_health(self, stall_s: float) -> None:
        """Find out whether the engine can do its work.

        A model that loads is not a failure, nor is a long piece of work within the bound, nor closing.

        Args:
            stall_s: Longest time without a finished piece, step or decode while there is work.

        Raises:
            EngineStopped: The owner thread has ended, or makes no progress.
        """
        if self._inbox.cause is not None:
            raise EngineStopped(self._inbox.cause.message) from self._inbox.cause.__cause__
        if self._loaded is None:
            return
        if not self._owner.alive:
            raise EngineStopped("the engine's thread has ended without a word")
        busy_since_s = self._inbox.load.busy_since_s
        if busy_since_s is None:
            return
        idle_s = self._clock() - max(busy_since_s, self.record.progress_s)
        if idle_s > stall_s:
            raise EngineStopped(
                f"the engine has work but made no progress for {idle_s:.1f} s, the limit is {stall_s:g} s"
            )

    def fail_all(self, reason: str) -> None:
        """Give the engine up: fail every caller and refuse every later job, even if the owner thread hangs."""
        self._owner.stop(EngineStopped(reason))

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> bool:
        """Take nothing new, and end.

        Args:
            drain: Let those inside finish; otherwise cancel them.
            timeout_s: How long to wait for the end; ``None`` waits for ever, also for a thread that hangs.

        Returns:
            Whether the owner thread has ended. If not, it still ends when it can.
        """
        self._inbox.close()
        if not drain:
            for job in self._inbox.jobs():
                job.reply.cancel()
        return self._owner.join(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    def _ready(self) -> Loaded:
        if self._loaded is None:
            self._inbox.check_open()
            raise EngineStopped("the engine has not started")
        return self._loaded


def _end_thread(inbox: Inbox, owner: Owner) -> None:
    """End the owner thread of an engine that nobody closed. A thread that hangs is left behind: it is a daemon."""
    inbox.close()
    for job in inbox.jobs():
        job.reply.cancel()
    owner.join(_EXIT_TIMEOUT_S)
