"""Rule 4: the gathering window applies once per idle stretch, measured from the first job's submission."""

from __future__ import annotations

from voxr_ray.engine.window import GatheringWindow


def test_it_runs_from_the_first_jobs_submission() -> None:
    window = GatheringWindow(5.0)
    assert window.remaining_s(first_submitted_s=100.0, now_s=101.0) == 4.0
    assert window.remaining_s(first_submitted_s=100.0, now_s=104.0) == 1.0
    assert window.remaining_s(first_submitted_s=100.0, now_s=106.0) == 0.0


def test_it_keeps_its_end_when_the_first_job_leaves() -> None:
    window = GatheringWindow(5.0)
    window.remaining_s(first_submitted_s=100.0, now_s=100.0)
    assert window.remaining_s(first_submitted_s=103.0, now_s=104.0) == 1.0


def test_a_batch_that_opens_again_does_not_wait() -> None:
    window = GatheringWindow(5.0)
    window.remaining_s(first_submitted_s=100.0, now_s=105.0)
    window.opened()
    assert window.remaining_s(first_submitted_s=200.0, now_s=200.0) == 0.0


def test_an_idle_stretch_brings_it_back() -> None:
    window = GatheringWindow(5.0)
    window.opened()
    window.went_idle()
    assert window.remaining_s(first_submitted_s=200.0, now_s=200.0) == 5.0


def test_a_length_of_zero_never_waits() -> None:
    assert GatheringWindow(0.0).remaining_s(first_submitted_s=1.0, now_s=1.0) == 0.0
