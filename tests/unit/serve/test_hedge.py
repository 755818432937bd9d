"""Asking again while the first to be asked is silent."""

from __future__ import annotations

import asyncio

import pytest

from voxr_ray.errors import EngineStopped, VoxrError
from voxr_ray.serve.hedge import first_answer


class Fleet:
    """Answers in turn: a text, an error, or ``None`` for silence."""

    def __init__(self, *answers: str | VoxrError | None) -> None:
        self.answers = list(answers)
        self.asked = self.cancelled = 0

    async def ask(self) -> str:
        answer = self.answers[self.asked]
        self.asked += 1
        if isinstance(answer, VoxrError):
            raise answer
        if answer is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return str(answer)


async def test_one_that_answers_is_enough() -> None:
    fleet = Fleet("here", "never asked")
    assert await first_answer(fleet.ask, every_s=60, most=4) == "here"
    assert fleet.asked == 1


async def test_a_silent_one_does_not_hide_the_others() -> None:
    fleet = Fleet(None, None, "here")
    assert await first_answer(fleet.ask, every_s=0.01, most=4) == "here"
    assert (fleet.asked, fleet.cancelled) == (3, 2)


async def test_a_failed_one_is_followed_by_another_at_once() -> None:
    fleet = Fleet(EngineStopped("lost"), "here")
    assert await first_answer(fleet.ask, every_s=60, most=2) == "here"


async def test_the_last_failure_is_told_when_all_fail() -> None:
    fleet = Fleet(EngineStopped("one"), EngineStopped("two"))
    with pytest.raises(EngineStopped, match="two"):
        await first_answer(fleet.ask, every_s=60, most=2)


async def test_whoever_stops_waiting_leaves_nothing_behind() -> None:
    fleet = Fleet(None, None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await first_answer(fleet.ask, every_s=0.01, most=2)
    assert (fleet.asked, fleet.cancelled) == (2, 2)
