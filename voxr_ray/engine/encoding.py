"""The queue of encode jobs. Owner thread. Encodes take no slot; their pieces run between two steps."""

from __future__ import annotations

from collections import deque

import numpy as np

from voxr_ray.engine.features import FeatureStore
from voxr_ray.engine.jobs import EncodeJob
from voxr_ray.engine.model import Work
from voxr_ray.engine.pieces import abandon, do_piece
from voxr_ray.engine.reply import gone
from voxr_ray.errors import EngineStopped, VoxrError


class EncodeQueue:
    """Encode jobs in the order of their submission; the oldest one's pieces come first.

    Args:
        store: Does and shares the work.
    """

    def __init__(self, store: FeatureStore) -> None:
        self._store = store
        self._queue: deque[tuple[EncodeJob, Work[np.ndarray]]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, job: EncodeJob) -> None:
        """Queue a job, or answer it at once if its features need no work."""
        known = self._store.known(job.recording, job.padding)
        if known is None:
            self._queue.append((job, self._store.encode(job.recording, job.padding)))
        else:
            _answer(job, known)

    def advance(self) -> bool:
        """Do one piece of the oldest job.

        Returns:
            Whether there was one.
        """
        if not self._queue:
            return False
        job, work = self._queue[0]
        try:
            finished = do_piece(work)
        except EngineStopped:
            raise
        except VoxrError as error:
            self._queue.popleft()
            job.reply.fail(error)
            return True
        if finished is not None:
            self._queue.popleft()
            _answer(job, finished.result)
        return True

    def drop_gone(self) -> None:
        """End the jobs whose callers have left."""
        if any(job.gone for job, _ in self._queue):
            entries, self._queue = self._queue, deque()
            for job, work in entries:
                if job.gone:
                    abandon(work)
                    job.reply.fail(gone())
                else:
                    self._queue.append((job, work))

    def abandon(self) -> None:
        """Drop all work without a word to its callers."""
        while self._queue:
            abandon(self._queue.popleft()[1])


def _answer(job: EncodeJob, features: np.ndarray) -> None:
    # A copy, because the cache keeps the array and its callers may write to theirs.
    job.reply.done(features.copy())
