"""Rule 5, on its own: who may take a slot next."""

from __future__ import annotations

from tests.fakes.driver import Probe, request
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.model import Plan
from voxr_ray.engine.waiting import WaitingList
from voxr_ray.messages import Sampler

A, B, C = (Sampler(cfg, 10) for cfg in (1.0, 2.0, 3.0))


def waiting(order: str) -> WaitingList:
    """Jobs named by position, samplers by letter: ``waiting("AAB")``."""
    jobs = WaitingList()
    for index, letter in enumerate(order):
        asked = request(text=f"{letter}{index}", cfg_value={"A": 1.0, "B": 2.0, "C": 3.0}[letter])
        jobs.add(RenderJob(asked, Plan((1,), 1, 2), 10, 1, False, Probe(), 0.0, index))
    return jobs


def test_jobs_that_were_moved_go_ahead_of_the_others_in_their_own_order() -> None:
    jobs = waiting("AB")
    for index, letter in enumerate("CA"):
        asked = request(text=f"moved{index}", cfg_value={"A": 1.0, "C": 3.0}[letter])
        jobs.add(RenderJob(asked, Plan((1,), 1, 2), 10, 1, False, Probe(), 0.0, 10 + index, moved=True))
    assert names(jobs.take_joiners(A, 16)) == "", "the first of them needs another sampler, and holds all"
    assert rest(jobs) == "moved0 moved1 A0 B1"


def names(jobs: list[RenderJob]) -> str:
    return " ".join(job.request.text for job in jobs)


def rest(jobs: WaitingList) -> str:
    """Everybody left, in order."""
    left = []
    while len(jobs):
        left.append(names(jobs.take_openers(1)))
    return " ".join(left)


def test_the_oldest_opens_and_its_sampler_follows_past_the_others() -> None:
    jobs = waiting("ABACA")
    assert names(jobs.take_openers(16)) == "A0 A2 A4"
    assert rest(jobs) == "B1 C3"


def test_openers_stop_at_the_width_and_the_rest_keep_their_order() -> None:
    jobs = waiting("ABAAA")
    assert names(jobs.take_openers(2)) == "A0 A2"
    assert len(jobs) == 3
    assert rest(jobs) == "B1 A3 A4"


def test_joiners_come_from_the_head_only() -> None:
    jobs = waiting("AABA")
    assert names(jobs.take_joiners(A, 16)) == "A0 A1"
    assert names(jobs.take_joiners(A, 16)) == ""
    assert rest(jobs) == "B2 A3"


def test_joiners_are_as_many_as_there_are_free_slots() -> None:
    jobs = waiting("AAAB")
    assert names(jobs.take_joiners(A, 0)) == ""
    assert names(jobs.take_joiners(A, 2)) == "A0 A1"
    assert names(jobs.take_joiners(A, 2)) == "A2"


def test_a_head_with_another_sampler_blocks_all() -> None:
    jobs = waiting("BAA")
    assert names(jobs.take_joiners(A, 16)) == ""


def test_held_are_the_first_stranger_and_all_behind() -> None:
    jobs = waiting("AABAA")
    assert jobs.held(A) == 3
    assert jobs.held(B) == 5
    assert jobs.held(None) == 0


def test_openers_are_counted_by_the_heads_sampler() -> None:
    assert waiting("ABABA").openers() == 3
    assert WaitingList().openers() == 0
    assert WaitingList().take_openers(4) == []


def test_those_who_left_are_taken_out_and_the_others_stay_in_order() -> None:
    jobs = waiting("ABC")
    head = jobs.head
    assert head is not None
    head.reply.cancel()
    assert names(jobs.take_gone()) == "A0"
    assert jobs.take_gone() == []
    assert rest(jobs) == "B1 C2"
