"""Jobs: seeds, budgets, takes and the race for a slot."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.fakes.driver import Probe, request
from voxr_ray.engine.jobs import Place, RenderJob, budget_of, seed_of
from voxr_ray.engine.model import Plan
from voxr_ray.messages import SEED_MAX, SEED_MODULUS, SynthRequest


def job_of(asked: SynthRequest, *, text_tokens: int = 10, stream: bool = False, seed: int = 5) -> RenderJob:
    plan = Plan(tuple(range(text_tokens)), text_tokens, text_tokens + 1)
    return RenderJob(asked, plan, budget_of(asked, plan), seed, stream, Probe(), 0.0, 1)


@pytest.mark.parametrize(
    ("seed", "used"), [(0, 0), (7, 7), (2**32 - 1, 2**32 - 1), (2**32, 0), (2**32 + 9, 9), (SEED_MAX, 2**32 - 1)]
)
def test_seeds_are_taken_modulo_two_to_the_32(seed: int, used: int) -> None:
    """Rule 13 and B5."""
    assert seed_of(request(seed=seed)) == used


def test_a_missing_seed_is_drawn_and_differs() -> None:
    drawn = {seed_of(request(seed=None)) for _ in range(20)}
    assert len(drawn) > 15
    assert all(0 <= seed < SEED_MODULUS for seed in drawn)


@pytest.mark.parametrize(
    ("text_tokens", "ratio", "max_len", "budget"),
    [(10, 6.0, 2000, 70), (10, 6.0, 50, 50), (3, 0.5, 2000, 11), (1, 0.1, 2000, 10), (500, 6.0, 2000, 2000)],
)
def test_the_budget_counts_target_tokens_and_never_exceeds_max_len(
    text_tokens: int, ratio: float, max_len: int, budget: int
) -> None:
    """S3: a limit given by the caller limits."""
    plan = Plan((1,) * 99, text_tokens, 200)
    assert budget_of(request(retry_badcase_ratio_threshold=ratio, max_len=max_len), plan) == budget


def test_a_retake_has_the_next_seed_modulo_two_to_the_32() -> None:
    job = job_of(request(), seed=SEED_MODULUS - 1)
    again = job.retried()
    assert (again.seed, again.take) == (0, 2)
    assert replace(again, seed=job.seed, take=1).reply is job.reply


def test_what_counts_as_a_bad_take() -> None:
    """Rule 10: at least ratio × tokens, buffered, wanted, and an attempt left."""
    asked = request(retry_badcase_ratio_threshold=3.0, retry_badcase_max_times=2)
    job = job_of(asked)
    assert job.may_retake(30)
    assert not job.may_retake(29)
    assert not job.retried().may_retake(30)
    assert not job_of(asked, stream=True).may_retake(30)
    assert not job_of(asked.model_copy(update={"retry_badcase": False})).may_retake(30)
    assert not job_of(asked.model_copy(update={"retry_badcase_max_times": 1})).may_retake(30)


def test_a_place_is_taken_or_withdrawn_but_never_both() -> None:
    for _ in range(200):
        place = Place()
        won: list[str] = []
        start = threading.Barrier(2)

        def race(name: str, place: Place = place, start: threading.Barrier = start, won: list[str] = won) -> None:
            start.wait()
            if place.take() if name == "owner" else place.withdraw():
                won.append(name)

        threads = [threading.Thread(target=race, args=(name,)) for name in ("owner", "caller")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert not place.waiting
