"""From request to job: plan, refuse or post, and close the books at the end. Any thread.

This runs on the callers' threads, so that a text is tokenized and a refusal raised without a look at the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from voxr_ray.engine.faults import blamed
from voxr_ray.engine.inbox import Inbox
from voxr_ray.engine.jobs import EncodeJob, Job, RenderJob, budget_of, seed_of
from voxr_ray.engine.limits import check_fits
from voxr_ray.engine.model import Padding, SlotModel
from voxr_ray.engine.record import Record
from voxr_ray.engine.reply import Done, Ending, Failed, Reply
from voxr_ray.engine.ticket import Ticket
from voxr_ray.errors import Cancelled, InvalidRequest, VoxrError
from voxr_ray.messages import Recording, Summary, SynthRequest, SynthResult, clip_digest


class Admission:
    """Lets jobs in.

    Args:
        model: Of which only :meth:`SlotModel.plan` is called.
        capacity: Positions of a slot.
        inbox: Where jobs go.
        record: Counts what enters, what is refused and how it ends.
        clock: Monotonic seconds.
    """

    def __init__(
        self, model: SlotModel, capacity: int, inbox: Inbox, record: Record, clock: Callable[[], float]
    ) -> None:
        self._model = model
        self._capacity = capacity
        self._inbox = inbox
        self._record = record
        self._clock = clock

    def submit(self, request: SynthRequest, reply: Reply[Any], *, stream: bool, moved: bool = False) -> Ticket:
        """Accept a render or raise; see :meth:`Engine.submit`."""
        try:
            self._inbox.knock(moved=moved)
            for recording in (request.reference, request.prompt):
                self._check_digest(recording)
            with blamed("the plan of a request"):
                plan = self._model.plan(request)
            check_fits(request, plan, self._capacity)
            job = RenderJob(
                request=request,
                plan=plan,
                budget_patches=budget_of(request, plan),
                seed=seed_of(request),
                stream=stream,
                reply=reply,
                submitted_s=self._clock(),
                sequence=self._inbox.next_sequence(),
                moved=moved,
            )
            self._post(job)
        except VoxrError as error:
            self._record.refused(error)
            raise
        return Ticket.of(job)

    def encode(self, recording: Recording, padding: Padding, reply: Reply[np.ndarray]) -> None:
        """Accept an encode or raise; see :meth:`Engine.encode`."""
        try:
            self._check_digest(recording)
            self._post(EncodeJob(recording, padding, reply, self._inbox.next_sequence()))
        except VoxrError as error:
            self._record.refused(error)
            raise

    def _check_digest(self, recording: Recording | None) -> None:
        """Recordings share features by digest, so a wrong one would give a caller somebody else's voice."""
        if recording is None or recording.clip is None:
            return
        if recording.digest != clip_digest(recording.clip, self._model.spec.input_sample_rate_hz):
            raise InvalidRequest("a recording's digest is not that of its samples: make it with Recording.of_clip")

    def _post(self, job: Job) -> None:
        job.reply.bind(lambda ending: self._settle(job, ending))
        try:
            self._inbox.post(job)
        except VoxrError:
            job.reply.unbind()
            raise
        self._record.submitted()

    def _settle(self, job: Job, ending: Ending[Any]) -> None:
        """Close the books on a job. Called once, by whoever ends its reply."""
        self._inbox.settle(job)
        match ending:
            case Done(result=SynthResult(summary=summary)) | Done(result=Summary() as summary):
                self._record.finished(summary.stop_reason.value)
            case Done():
                self._record.encoded()
            case Failed(error=Cancelled()):
                self._record.cancelled()
            case Failed(error=error):
                self._record.failed(error)
