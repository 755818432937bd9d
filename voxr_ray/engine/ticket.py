"""What a caller holds of an accepted render, and what anybody may see of an engine. Any thread."""

from __future__ import annotations

from dataclasses import dataclass

from voxr_ray.engine.inbox import Load
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.record import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """What is known of a render once it is accepted.

    Attributes:
        seed: Seed of its first take, after the modulus.
        budget_patches: Most patches of one take.
        text_tokens: Tokens of the target text.
        seq_len: Positions of its prefix.
    """

    seed: int
    budget_patches: int
    text_tokens: int
    seq_len: int
    _job: RenderJob

    @classmethod
    def of(cls, job: RenderJob) -> Ticket:
        """The ticket of a job just accepted."""
        return cls(job.seed, job.budget_patches, job.plan.text_tokens, job.plan.seq_len, job)

    @property
    def waiting(self) -> bool:
        """Whether it has neither taken a slot nor been withdrawn."""
        return self._job.place.waiting

    def cancel(self) -> None:
        """Say that the caller has left; like ``reply.cancel()``."""
        self._job.reply.cancel()

    def withdraw(self) -> bool:
        """Take the job back if it still waits for a slot, to give it to another engine.

        Returns:
            Whether it was taken back. Its reply then ends with :class:`~voxr_ray.errors.Cancelled`; otherwise the
            job goes on here.
        """
        withdrawn = self._job.place.withdraw()
        if withdrawn:
            self._job.reply.cancel()
        return withdrawn


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine at a moment. Picklable.

    Attributes:
        width: Its slots.
        load: Jobs inside, counted this moment.
        record: Counters, and the batch as the latest cycle left it.
    """

    width: int
    load: Load
    record: Snapshot
