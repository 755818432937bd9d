"""The board: what replicas say of themselves, and what a router makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.serve.local import LocalServer
from voxr_ray.errors import EngineStopped
from voxr_ray.serve.board import MOST_STEPS, Board, ReplicaBoard


async def read(local: LocalServer, **query: Any) -> Any:
    answer = await local.client.get("/v1/board", params=query)
    assert answer.status_code == 200
    return answer.json()


async def test_an_idle_replica(local: LocalServer) -> None:
    board = await read(local)
    assert (board["object"], board["silent"]) == ("board", 0)
    (replica,) = board["replicas"]
    assert replica["running"] is True
    assert replica["width"] == local.settings.max_batch
    assert replica["slots"] == replica["steps"] == []
    assert replica["sampler"] is None
    assert replica["patch_s"] == pytest.approx(0.01)
    assert (replica["rows"], replica["waiting"], replica["held"], replica["inside"]) == (0, 0, 0, 0)


async def until(local: LocalServer, condition: Callable[[Any], bool]) -> Any:
    """The first reading of the replica that meets ``condition``."""
    async with asyncio.timeout(60):
        while not condition(replica := (await read(local, steps=MOST_STEPS))["replicas"][0]):
            await asyncio.sleep(0.01)
    return replica


async def test_a_replica_at_work_and_after_it() -> None:
    local = LocalServer({"max_batch": 2}, delays={"step": 0.002})
    text = {"input": "word @patches=never@", "max_len": 400, "retry_badcase_ratio_threshold": 100}
    speeches = [asyncio.create_task(local.speak(cfg_value=cfg, **text)) for cfg in (2.0, 2.0, 3.0, 2.0)]
    replica = await until(local, lambda replica: replica["held"] == 2 and len(replica["slots"]) == 2)
    assert replica["slots"] == [0, 1]
    assert replica["sampler"] == {"cfg_value": 2.0, "inference_timesteps": 10}
    assert replica["next_sampler"]["cfg_value"] == 3.0
    assert replica["waiting"] == 2
    assert replica["inside"] == 4
    step = replica["steps"][-1]
    assert step["slots"] == [0, 1]
    assert step["step_ms"] >= 2
    assert 0 < step["started_s"] <= replica["now_s"]
    assert {answer.status_code for answer in await asyncio.gather(*speeches)} == {200}
    replica = await until(local, lambda replica: sum(replica["counts"]["finished"].values()) == 4)
    assert replica["slots"] == []
    starts = [step["started_s"] for step in replica["steps"]]
    assert len(starts) == MOST_STEPS
    assert starts == sorted(set(starts))
    assert len((await read(local, steps=7))["replicas"][0]["steps"]) == 7
    assert (await read(local, steps=0))["replicas"][0]["steps"] == []
    await local.close()


@pytest.mark.parametrize("steps", ["-1", "257", "many", "1.5", "", "٣"])
async def test_a_wrong_number_of_steps_is_refused(local: LocalServer, steps: str) -> None:
    answer = await local.client.get("/v1/board", params={"steps": steps})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "steps"
    assert str(MOST_STEPS) in answer.json()["error"]["message"]


class Herd:
    """Replicas that answer what they are told to."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def broadcast(self, method: str, *, timeout_s: float) -> list[Any]:
        assert method == "board"
        self.asked += 1
        await asyncio.sleep(0)
        return self.answers


def said_by(name: str) -> ReplicaBoard:
    return ReplicaBoard(name, {"rows": 0}, [{"started_s": float(n)} for n in range(3)])


async def test_replicas_are_in_order_and_silent_ones_are_counted() -> None:
    herd = Herd(said_by("b"), EngineStopped("late"), said_by("a"))
    board = await Board(herd).read(2)  # type: ignore[arg-type]
    assert [replica["id"] for replica in board["replicas"]] == ["a", "b"]
    assert board["silent"] == 1
    assert board["replicas"][0]["steps"] == [{"started_s": 1.0}, {"started_s": 2.0}]


async def test_many_watchers_cost_one_reading_a_quarter_of_a_second() -> None:
    now = 100.0
    herd = Herd(said_by("a"))
    board = Board(herd, clock=lambda: now)  # type: ignore[arg-type]
    await asyncio.gather(*(board.read(n) for n in range(20)))
    assert herd.asked == 1
    now += 0.2
    await board.read(1)
    assert herd.asked == 1
    now += 0.2
    await board.read(1)
    assert herd.asked == 2


async def test_no_replica_is_an_empty_board() -> None:
    board = await Board(Herd()).read(5)  # type: ignore[arg-type]
    assert (board["replicas"], board["silent"]) == ([], 0)
