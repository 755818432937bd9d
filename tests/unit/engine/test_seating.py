"""Rule 7: the stages between taking a slot and stepping in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes.driver import Driver, Probe, request
from tests.fakes.slot_model import FakeSlotModel, make_fake_model
from voxr_ray.engine.features import FeatureStore
from voxr_ray.engine.jobs import RenderJob, budget_of
from voxr_ray.engine.reference_cache import ReferenceCache
from voxr_ray.engine.seating import Conditioning, Prepared, Seating, preparation
from voxr_ray.errors import TooLarge
from voxr_ray.messages import Prompt, Reference, SynthRequest

VOICE = Reference.of_clip(np.arange(1, 790), 16_000)
PROMPT = Prompt(digest=VOICE.digest, clip=VOICE.clip, text="said")


def job_of(model: FakeSlotModel, asked: SynthRequest) -> RenderJob:
    plan = model.plan(asked)
    return RenderJob(asked, plan, budget_of(asked, plan), 1, False, Probe(), 0.0, 1)


def seat(asked: SynthRequest, *, capacity: int = 4096, known: Conditioning | None = None) -> tuple[Any, Seating]:
    model = make_fake_model(encode_patches_per_piece=1, prefill_positions_per_piece=10)
    job = job_of(model, asked)
    store = FeatureStore(model, ReferenceCache(1 << 20))
    return model, Seating(job, preparation(job, model, store, capacity, known), 0.0)


def finish(seating: Seating) -> tuple[int, Prepared]:
    for count in range(1, 1000):
        if (prepared := seating.advance()) is not None:
            return count, prepared
    raise AssertionError("never prepared")


def test_stages_follow_each_other_a_piece_at_a_time() -> None:
    """Five patches of reference, five of prompt, then 5 + 5 + 2 + 4 + 9 + 1 positions in pieces of ten."""
    model, seating = seat(request("nine char", reference=VOICE, prompt=PROMPT))
    seen = []
    for _ in range(13):
        before = len(model.calls)
        done = seating.advance()
        seen.append([call.op for call in list(model.calls)[before:]])
    assert seen == [["encode"]] * 10 + [["prefill"]] * 3
    assert done is not None
    assert done.conditioning.reference is not None
    assert not np.array_equal(done.conditioning.reference, done.conditioning.prompt)


def test_a_zero_shot_text_has_nothing_to_resolve() -> None:
    count, prepared = finish(seat(request("nine char"))[1])
    assert count == 1
    assert prepared.conditioning.reference is None
    assert prepared.conditioning.prompt is None


def test_a_known_conditioning_is_not_resolved_again() -> None:
    known = Conditioning(np.ones((5, 2, 4), dtype=np.float32), None)
    model, seating = seat(request("nine char", reference=VOICE), known=known)
    _, prepared = finish(seating)
    assert prepared.conditioning is known
    assert model.count("encode") == 0


def test_what_does_not_fit_is_refused_before_any_work() -> None:
    """The guard behind the check at submission."""
    model, seating = seat(request("nine char", reference=VOICE), capacity=50)
    with pytest.raises(TooLarge):
        seating.advance()
    assert model.count("encode") == model.count("prefill") == 0


def test_the_guard_reports_on_the_jobs_own_reply_and_frees_the_slot() -> None:
    driver = Driver()
    small = job_of(driver.model, request("x", retry_badcase_ratio_threshold=100.0))
    large = job_of(driver.model, request("x" * 3000))
    for job in (small, large):
        job.reply.bind(lambda ending, job=job: driver.inbox.settle(job))
    driver.inbox.post(large)
    driver.run()
    assert isinstance(large.reply.error, TooLarge)  # type: ignore[attr-defined]
    assert driver.loop.batch.slots.empty
    driver.inbox.post(small)
    driver.run()
    assert small.reply.result.summary.patches == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("pieces", [0, 1, 7, 11])
def test_abandoning_leaves_nothing_open(pieces: int) -> None:
    model, seating = seat(request("nine char", reference=VOICE, prompt=PROMPT))
    for _ in range(pieces):
        seating.advance()
    seating.abandon()
    assert model.open_works == 0
