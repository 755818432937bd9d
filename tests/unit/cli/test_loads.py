"""The two kinds of load, on a server that answers at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from voxr_ray.cli.loads import Call, closed_loop, open_loop


class Answering:
    """Notes who was there at the same time."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.seen: list[Any] = []

    async def __call__(self, fields: dict[str, Any]) -> Call:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        self.seen.append(fields["input"])
        call = Call(time.perf_counter())
        call.ended_s = call.started_s
        return call


async def test_a_closed_loop_keeps_its_users_busy() -> None:
    server, told = Answering(), []
    calls = await closed_loop(server, [{"input": n} for n in range(10)], 3, lambda: told.append(1))
    assert len(calls) == len(told) == 10
    assert server.most == 3
    assert sorted(server.seen) == list(range(10))


async def test_an_open_loop_waits_for_nobody() -> None:
    server = Answering()
    calls = await open_loop(server, [{"input": n} for n in range(6)], [0.0] * 6, lambda: None)
    assert len(calls) == 6
    assert server.most == 6
