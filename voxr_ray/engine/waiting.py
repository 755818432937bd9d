"""The waiting list and the sampler rule. Owner thread.

All occupants of the batch share one sampler. A job that needs another one is *held*, and holds up every job behind it:
otherwise a steady flow of the running sampler would starve it. Once the batch is empty the oldest waiting job opens
it again, with its own sampler.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from voxr_ray.engine.jobs import RenderJob
from voxr_ray.messages import Sampler


class WaitingList:
    """Jobs without a slot, in the order of their submission; those that come from a lost engine before all others.

    That order starves nobody: as many jobs are moved as lost engines had accepted, and no more.
    """

    def __init__(self) -> None:
        self._jobs: list[RenderJob] = []

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def head(self) -> RenderJob | None:
        """The first job."""
        return self._jobs[0] if self._jobs else None

    def add(self, job: RenderJob) -> None:
        """Queue a job behind all others, or behind all others that were moved if it was."""
        if job.moved:
            self._jobs.insert(sum(other.moved for other in self._jobs), job)
        else:
            self._jobs.append(job)

    def held(self, running: Sampler | None) -> int:
        """Jobs that wait for the batch to empty: the first that needs another sampler, and all behind it."""
        if running is None:
            return 0
        return len(self._jobs) - sum(1 for _ in takewhile(lambda job: job.sampler == running, self._jobs))

    def openers(self) -> int:
        """Jobs that could start together if the batch opened now."""
        return sum(job.sampler == self._jobs[0].sampler for job in self._jobs)

    def take_openers(self, width: int) -> list[RenderJob]:
        """Take the jobs that open an empty batch: the oldest, and those with its sampler up to ``width``.

        They may pass jobs with other samplers, which keep their order. This is the only moment a job passes another,
        and a bounded one: whoever arrives later finds others held, and queues.
        """
        if not self._jobs:
            return []
        sampler = self._jobs[0].sampler
        taken = [job for job in self._jobs if job.sampler == sampler][:width]
        self._keep(lambda job: job not in taken)
        return taken

    def take_joiners(self, running: Sampler, free: int) -> list[RenderJob]:
        """Take the jobs that join a running batch: from the head, as long as they need its sampler."""
        taken = list(takewhile(lambda job: job.sampler == running, self._jobs[:free]))
        self._jobs = self._jobs[len(taken) :]
        return taken

    def take_gone(self) -> list[RenderJob]:
        """Take the jobs whose callers have left."""
        taken = [job for job in self._jobs if job.gone]
        if taken:
            self._keep(lambda job: job not in taken)
        return taken

    def clear(self) -> None:
        """Forget all of them."""
        self._jobs = []

    def _keep(self, wanted: Callable[[RenderJob], bool]) -> None:
        self._jobs = [job for job in self._jobs if wanted(job)]
