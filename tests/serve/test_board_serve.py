"""The board and the pages over real HTTP, with more than one replica."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.serve.server import WAIT_S, Server


def board_until(server: Server, condition: Callable[[Any], bool]) -> Any:
    """The first board that meets ``condition``; fails with the last one."""
    until = time.monotonic() + WAIT_S
    while True:
        answer = httpx.get(f"{server.url}/v1/board", timeout=WAIT_S)
        assert answer.status_code == 200
        if condition(board := answer.json()):
            return board
        assert time.monotonic() < until, f"the board never got there: {board}"
        time.sleep(0.05)


@pytest.mark.slow
def test_the_board_shows_every_replica_and_counts_a_frozen_one(deploy: Callable[..., Server]) -> None:
    server = deploy("board", max_batch=2, num_replicas=2, health_check_period_s=60.0)
    board = board_until(server, lambda board: len(board["replicas"]) == 2)
    assert len({replica["id"] for replica in board["replicas"]}) == 2
    assert all(replica["width"] == 2 for replica in board["replicas"])
    answers = [server.speak(input="four patches @patches=4@", seed=seed) for seed in range(6)]
    assert {answer.status_code for answer in answers} == {200}
    finished = "counts", "finished", "stop"
    board = board_until(server, lambda board: sum(_at(replica, *finished) for replica in board["replicas"]) == 6)
    steps = [step for replica in board["replicas"] for step in replica["steps"]]
    assert sum(len(step["slots"]) for step in steps) == 24

    frozen = server.replica_pids()[0]
    os.kill(frozen, signal.SIGSTOP)
    try:
        board = board_until(server, lambda board: board["silent"] == 1)
        assert len(board["replicas"]) == 1, "the other is shown all the same"
    finally:
        os.kill(frozen, signal.SIGCONT)
    board_until(server, lambda board: len(board["replicas"]) == 2)


def test_pages_are_served_below_the_prefix(server: Server) -> None:
    for page in ("/", "/board"):
        answer = httpx.get(f"{server.url}{page}", timeout=WAIT_S)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        script = answer.text.partition('<script type="module" src="')[2].partition('"')[0]
        part = httpx.get(httpx.URL(f"{server.url}{page}").join(script), timeout=WAIT_S)
        assert (part.status_code, part.headers["content-type"]) == (200, "text/javascript; charset=utf-8")


def _at(value: Any, *names: str) -> int:
    for name in names:
        value = value.get(name, {})
    return value or 0
