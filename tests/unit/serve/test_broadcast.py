"""Asking every replica: each answers for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import RayActorError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from voxr_ray.errors import ReplicaLost
from voxr_ray.serve.transport import Replicas


class Answer:
    """A call to one replica."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome
        self.cancelled = False

    async def get_async(self) -> Any:
        if self.outcome is None:
            await asyncio.Event().wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Stands in for a handle whose replicas give the answers."""

    def __init__(self, answers: list[Answer] | Exception | None) -> None:
        self.answers = answers

    def options(self, **options: Any) -> Handle:
        return self

    def broadcast(self, method: str, *args: Any) -> Handle:
        return self

    async def _fetch_replica_results_async(self) -> list[Answer]:
        if self.answers is None:
            await asyncio.Event().wait()
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers or []


def asked(answers: list[Answer] | Exception | None) -> Any:
    return Replicas(Handle(answers)).broadcast("board", timeout_s=0.05)  # type: ignore[arg-type]


async def test_one_that_is_late_or_dead_hides_no_other() -> None:
    answers = [Answer("one"), Answer(None), Answer(RayActorError()), Answer("four")]
    first, late, dead, last = await asked(answers)
    assert (first, last) == ("one", "four")
    assert isinstance(late, ReplicaLost)
    assert isinstance(dead, ReplicaLost)
    assert [answer.cancelled for answer in answers] == [False, True, False, False]


async def test_without_replicas_there_is_no_answer() -> None:
    assert await asked([]) == []
    assert await asked(DeploymentUnavailableError(DeploymentID("Replica", "app"))) == []


async def test_replicas_that_cannot_be_asked_are_an_error() -> None:
    with pytest.raises(ReplicaLost, match="did not answer"):
        await asked(None)
    with pytest.raises(ReplicaLost):
        await asked(RayActorError())


async def test_who_leaves_takes_the_calls_along() -> None:
    answers = [Answer(None)]
    task = asyncio.create_task(Replicas(Handle(answers)).broadcast("board", timeout_s=60))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert answers[0].cancelled
