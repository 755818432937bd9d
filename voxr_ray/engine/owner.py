"""The owner thread: builds the model, runs the loop, and sees to it that nobody waits for a thread that has ended.

The thread is a daemon. An interpreter that exits waits for its other threads, and an engine whose owner hangs in a
device call would hang it for ever; the engine closes itself at exit instead, with a bound
(:class:`~voxr_ray.engine.engine.Engine`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from voxr_ray.engine.admission import Admission
from voxr_ray.engine.faults import described, fatal
from voxr_ray.engine.inbox import Inbox
from voxr_ray.engine.loop import Loop
from voxr_ray.engine.model import ModelSpec, SlotModel
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.record import Record
from voxr_ray.errors import EngineStopped, VoxrError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to serve.

    Attributes:
        model: Of which other threads may call :meth:`SlotModel.plan` and nothing else.
        spec: Its facts.
        capacity: Positions of a slot: the option, capped by what the model can represent.
        admission: Lets jobs in.
    """

    model: SlotModel
    spec: ModelSpec
    capacity: int
    admission: Admission


class Owner:
    """Runs a loop on a thread of its own.

    Args:
        model_factory: Builds the model; called on the thread.
        options: How the loop batches.
        inbox: Where its jobs come from.
        record: Where it writes down what it did.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        model_factory: Callable[[], SlotModel],
        options: EngineOptions,
        inbox: Inbox,
        record: Record,
        clock: Callable[[], float],
    ) -> None:
        self._model_factory = model_factory
        self._options = options
        self._inbox = inbox
        self._record = record
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="voxr-engine", daemon=True)
        self._started = threading.Event()
        self._outcome: Loaded | BaseException | None = None

    def start(self, timeout_s: float | None) -> Loaded:
        """Start the thread and wait until the model is loaded.

        Raises:
            VoxrError: Loading failed; errors of the project's tree arrive as they are, others as EngineStopped.
            EngineStopped: Also if it takes longer than ``timeout_s``.
        """
        self._thread.start()
        if not self._started.wait(timeout_s):
            cause = EngineStopped(
                f"the model was not loaded within {timeout_s:g} s: allow more, or look for what hangs"
            )
            self.stop(cause)
            raise cause
        if isinstance(self._outcome, Loaded):
            return self._outcome
        if isinstance(self._outcome, VoxrError):
            raise self._outcome
        raise EngineStopped(f"the engine could not start: {_told(self._outcome)}") from self._outcome

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the thread to end.

        Returns:
            Whether it has.
        """
        # An engine may be collected on its own owner thread, which cannot wait for itself.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self, cause: EngineStopped) -> None:
        """End every reply with ``cause`` and let nobody in any more. Any thread, also while the owner hangs.

        The owner notices when it comes back from whatever it does, and ends.
        """
        for job in self._inbox.stop(cause):
            error = EngineStopped(cause.message)
            error.__cause__ = cause.__cause__
            job.reply.abort(error)

    def _run(self) -> None:
        try:
            loaded = self._load()
            loop = Loop(loaded.model, loaded.capacity, self._options, self._inbox, self._record, self._clock)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the starter waits for it
            self.stop(_fatal("the engine could not start", error))
            self._outcome = error
            self._started.set()
            return
        self._outcome = loaded
        self._started.set()
        try:
            loop.run()
        except BaseException as error:
            # Whatever it is: an end of this thread that nobody is told of would leave every caller waiting.
            # The traceback stays in the log: its frames hold the model's tensors, and the error outlives them.
            _logger.exception("the engine's loop failed")
            stopped = _fatal("the engine has stopped", error)
            if stopped.__cause__ is not None:
                stopped.__cause__.with_traceback(None)
            self.stop(stopped)
        else:
            self.stop(EngineStopped("the engine is closed"))
        finally:
            loop.abandon()

    def _load(self) -> Loaded:
        model = self._model_factory()
        spec = model.spec
        capacity = min(self._options.continuous_capacity, spec.max_positions)
        with fatal("opening the batch"):
            model.open(self._options.max_batch, capacity)
        admission = Admission(model, capacity, self._inbox, self._record, self._clock)
        return Loaded(model, spec, capacity, admission)


def _fatal(what: str, error: BaseException) -> EngineStopped:
    """The error that everybody gets, chained to what the model raised."""
    stopped = EngineStopped(f"{what}: {_told(error)}")
    stopped.__cause__ = error.__cause__ if isinstance(error, EngineStopped) and error.__cause__ else error
    return stopped


def _told(error: BaseException | None) -> str:
    if isinstance(error, VoxrError):
        return error.message
    return "it ended without a reason" if error is None else described(error)
