"""What the engine did: counters, the latest steps, and the state of the batch after the latest cycle.

The owner thread writes, and callers on other threads count their refusals here; any thread reads. One lock makes
every copy consistent; it is held for a few assignments only.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from voxr_ray.engine.reference_cache import CacheStats, Key
from voxr_ray.errors import VoxrError
from voxr_ray.messages import Sampler


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Attributes:
        started_s: When it began, on the engine's clock.
        step_s: Seconds in the model's step.
        decode_s: Seconds in the decodes after it.
        gap_s: Seconds between the end of the step before and this one's start, if its rows were waiting then; what
            they lost to the work in between.
        width: Lanes computed.
        slots: Seated slots, in order.
        sampler: What they share.
        seatings: Slots reserved for jobs under preparation.
        waiting: Jobs without a slot.
        held: Those of them that wait for the batch to empty.
        pieces: Pieces of encode and seating work since the step before.
    """

    started_s: float
    step_s: float
    decode_s: float
    gap_s: float
    width: int
    slots: tuple[int, ...]
    sampler: Sampler
    seatings: int
    waiting: int
    held: int
    pieces: int


@dataclass(frozen=True, slots=True)
class BatchState:
    """The batch as the latest cycle left it.

    Attributes:
        rows: Seated rows.
        seatings: Slots reserved for jobs under preparation.
        waiting: Jobs without a slot.
        held: Those of them that wait for the batch to empty.
        encodes: Encode jobs.
        sampler: What the occupants share; ``None`` without occupants.
        next_sampler: What the oldest job without a slot needs.
        cache: What the reference cache did and holds.
    """

    rows: int = 0
    seatings: int = 0
    waiting: int = 0
    held: int = 0
    encodes: int = 0
    sampler: Sampler | None = None
    next_sampler: Sampler | None = None
    cache: CacheStats = field(default_factory=CacheStats)


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since the start; none ever falls.

    ``submitted`` is what entered: renders and encodes that were not refused. Each of them ends in exactly one of
    ``finished`` (by the reason the take stopped), ``encodes``, ``cancelled`` and ``failed`` (by class). ``refused``
    (by class) never entered.
    """

    submitted: int
    refused: Mapping[str, int]
    seated: int
    retakes: int
    steps: int
    patches: int
    pieces: int
    finished: Mapping[str, int]
    encodes: int
    cancelled: int
    failed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent copy of the record. Picklable."""

    counts: Counts
    batch: BatchState
    last_step: StepRecord | None
    progress_s: float


class Record:
    """See the module.

    Args:
        steps: How many steps are remembered.
        now_s: The time of its creation, on the engine's clock.
    """

    def __init__(self, steps: int, now_s: float) -> None:
        self._lock = threading.Lock()
        self._steps: deque[StepRecord] = deque(maxlen=steps)
        self._totals: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._batch = BatchState()
        self._cached: frozenset[Key] = frozenset()
        self._progress_s = now_s

    # Written by the owner thread.

    def progressed(self, now_s: float) -> None:
        """Note that a piece, step or decode is complete: the thread is not stuck."""
        with self._lock:
            self._progress_s = now_s

    def piece(self, now_s: float) -> None:
        """Count a piece of encode or seating work."""
        with self._lock:
            self._totals["pieces"] += 1
            self._progress_s = now_s

    def step(self, step: StepRecord) -> None:
        """Remember a step, one patch for each of its rows."""
        with self._lock:
            self._steps.append(step)
            self._totals["steps"] += 1
            self._totals["patches"] += len(step.slots)

    def seated(self) -> None:
        """Count a take that was admitted to its lane."""
        with self._lock:
            self._totals["seated"] += 1

    def retaken(self) -> None:
        """Count a bad take that is rendered again."""
        with self._lock:
            self._totals["retakes"] += 1

    def publish(self, batch: BatchState, cached: frozenset[Key]) -> None:
        """Replace the state of the batch, and the list of recordings whose features are cached."""
        with self._lock:
            self._batch = batch
            self._cached = cached

    # Written by any thread.

    def submitted(self) -> None:
        """Count a job that entered."""
        with self._lock:
            self._totals["submitted"] += 1

    def refused(self, error: VoxrError) -> None:
        """Count a submission that did not."""
        with self._lock:
            self._refused[type(error).__name__] += 1

    def finished(self, reason: str) -> None:
        """Count a render that is complete, by the reason its take stopped."""
        with self._lock:
            self._finished[reason] += 1

    def encoded(self) -> None:
        """Count an encode job that is complete."""
        with self._lock:
            self._totals["encodes"] += 1

    def cancelled(self) -> None:
        """Count a job whose caller left."""
        with self._lock:
            self._totals["cancelled"] += 1

    def failed(self, error: VoxrError) -> None:
        """Count a job that failed."""
        with self._lock:
            self._failed[type(error).__name__] += 1

    # Read by any thread.

    @property
    def progress_s(self) -> float:
        """When the thread last completed something."""
        with self._lock:
            return self._progress_s

    @property
    def cached(self) -> frozenset[Key]:
        """Recordings whose features are cached. Not in the snapshot: there may be thousands."""
        with self._lock:
            return self._cached

    def steps(self) -> tuple[StepRecord, ...]:
        """The latest steps, oldest first."""
        with self._lock:
            return tuple(self._steps)

    def snapshot(self) -> Snapshot:
        """Everything but the older steps. Costs a few microseconds."""
        with self._lock:
            totals = self._totals
            counts = Counts(
                submitted=totals["submitted"],
                refused=_copied(self._refused),
                seated=totals["seated"],
                retakes=totals["retakes"],
                steps=totals["steps"],
                patches=totals["patches"],
                pieces=totals["pieces"],
                finished=_copied(self._finished),
                encodes=totals["encodes"],
                cancelled=totals["cancelled"],
                failed=_copied(self._failed),
            )
            last = self._steps[-1] if self._steps else None
            return Snapshot(counts, self._batch, last, self._progress_s)


def _copied(counter: Counter[str]) -> Mapping[str, int]:
    return dict(counter)
