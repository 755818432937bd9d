"""Seating: what happens to a job between taking a slot and stepping in it. Owner thread.

The slot is reserved from the start, but its lane stays free and untouched until the handoff is admitted. The work
is cut into pieces, and the loop puts steps of the running rows between them. Whatever refuses the job is raised
to the batch, which reports it on the job's own reply and frees the slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from voxr_ray.engine.faults import blamed
from voxr_ray.engine.features import FeatureStore
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.limits import check_fits
from voxr_ray.engine.model import Padding, SlotModel, Work
from voxr_ray.engine.pieces import abandon, do_piece
from voxr_ray.messages import Recording


@dataclass(frozen=True, slots=True, eq=False)
class Conditioning:
    """Features a take speaks with; kept by its row, so that a further take need not find them again."""

    reference: np.ndarray | None
    prompt: np.ndarray | None


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A job ready to be admitted: ``handoff`` is the model's."""

    conditioning: Conditioning
    handoff: Any


class Seating:
    """The occupant of a reserved slot.

    Args:
        job: Who it is reserved for.
        work: Its preparation.
        since_s: When the slot was taken, on the engine's clock.
    """

    def __init__(self, job: RenderJob, work: Work[Prepared], since_s: float) -> None:
        self.job = job
        self.since_s = since_s
        self._work = work

    def advance(self) -> Prepared | None:
        """Do one piece.

        Returns:
            What is to be admitted, after the last piece.
        """
        finished = do_piece(self._work)
        return None if finished is None else finished.result

    def abandon(self) -> None:
        """Stop in the middle. Encodes that others share go on without this one."""
        abandon(self._work)


def preparation(
    job: RenderJob, model: SlotModel, store: FeatureStore, capacity: int, known: Conditioning | None
) -> Work[Prepared]:
    """Check, resolve and prefill ``job``.

    Args:
        job: Who is seated.
        model: Prefills.
        store: Resolves recordings.
        capacity: Positions of a slot.
        known: The conditioning of an earlier take of the same job.

    Returns:
        Work whose result :meth:`SlotModel.admit` takes.
    """
    check_fits(job.request, job.plan, capacity)
    if known is None:
        reference = yield from _features(job.request.reference, Padding.RIGHT, store)
        prompt = yield from _features(job.request.prompt, Padding.LEFT, store)
        known = Conditioning(reference, prompt)
    with blamed("the prefill", job.request.request_id):
        handoff = yield from model.prefill(job.plan, known.reference, known.prompt)
    return Prepared(known, handoff)


def _features(recording: Recording | None, padding: Padding, store: FeatureStore) -> Work[np.ndarray | None]:
    if recording is None:
        return None
    features = store.known(recording, padding)
    if features is None:
        features = yield from store.encode(recording, padding)
        # The last piece of an encode and the first of what follows are two pieces.
        yield
    return features
