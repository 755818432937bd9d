"""Replicas that are killed, stop, fall silent or are removed under running answers: every client gets every byte."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.fakes.solo import render_alone
from tests.serve.server import WAIT_S, Server
from voxr_ray.audio import pcm16_bytes
from voxr_ray.messages import SynthRequest

STEP_S = 0.01
SETTINGS: dict[str, Any] = {
    "model": {"delays": {"step": STEP_S}},
    "num_replicas": 3,
    "max_batch": 4,  # a dozen streams fill all three: with room in one, none would go to the others
    "health_check_period_s": 0.3,
    "graceful_shutdown_timeout_s": 120.0,
}


class Crowd:
    """Clients that each ask for one answer at the same time, over real HTTP.

    Args:
        server: Whom they ask.
        clients: How many they are.
        patches: Length of their answers.
        whole: How many of them want their answer in one piece, the last ones.
    """

    def __init__(self, server: Server, clients: int, patches: int, whole: int = 0) -> None:
        self._server = server
        self._text = f"@patches={patches}@ " + "a text that is long enough " * (patches // 100 + 1)
        self._pool = ThreadPoolExecutor(clients)
        self._heard = threading.Semaphore(0)
        self._streams = clients - whole
        self.calls: list[Future[bytes]] = [
            self._pool.submit(self._listen, seed, seed < self._streams) for seed in range(clients)
        ]

    def _listen(self, seed: int, stream: bool) -> bytes:
        body = {"input": self._text, "seed": seed, "stream": stream, "response_format": "pcm", "retry_badcase": False}
        url = f"{self._server.url}/v1/audio/speech"
        content = b""
        with httpx.stream("POST", url, json=body, timeout=4 * WAIT_S) as answer:
            if answer.status_code != 200:
                raise AssertionError(f"{answer.status_code}: {answer.read()!r}")
            for part in answer.iter_raw():
                if not content and stream:
                    self._heard.release()
                content += part
        return content

    def wait_until_all_hear_something(self) -> None:
        """Return once every stream has begun."""
        for _ in range(self._streams):
            assert self._heard.acquire(timeout=2 * WAIT_S)

    @property
    def listening(self) -> bool:
        """Whether somebody's answer is not complete."""
        return not all(call.done() for call in self.calls)

    def check(self) -> None:
        """Every answer is complete, and byte for byte what one engine alone would give."""
        for seed, call in enumerate(self.calls):
            request = SynthRequest(text=self._text, seed=seed, retry_badcase=False)
            assert call.result(4 * WAIT_S) == pcm16_bytes(render_alone(request).samples), f"the answer to {seed}"
        self._pool.shutdown()


@pytest.fixture(scope="module")
def trio(deploy: Callable[..., Server]) -> Server:
    """Three replicas, looked after closely."""
    return deploy("trio", **SETTINGS)


def wait_for_replicas(server: Server, count: int, gone: Sequence[int] = ()) -> list[int]:
    """Processes of the replicas, once there are so many and none of ``gone`` is left."""
    until = time.monotonic() + 2 * WAIT_S
    while True:
        pids = server.replica_pids()
        if len(pids) == count and not set(gone) & set(pids):
            return pids
        assert time.monotonic() < until, f"replicas {pids}, wanted {count} without {gone}"
        time.sleep(0.05)


def kill_one(server: Server) -> int:
    """SIGKILL a replica."""
    pid = server.replica_pids()[0]
    os.kill(pid, signal.SIGKILL)
    return pid


def failovers(server: Server) -> Any:
    return server.handle.failovers.remote().result()


def test_killed_replicas_cost_no_client_anything(trio: Server) -> None:
    """V6: streams and whole answers; two replicas, one after the other; what was killed is replaced."""
    wait_for_replicas(trio, 3)
    crowd = Crowd(trio, 12, patches=400, whole=3)
    crowd.wait_until_all_hear_something()
    killed = [kill_one(trio)]
    time.sleep(1.0)
    assert crowd.listening
    killed.append(kill_one(trio))
    crowd.check()
    counts = failovers(trio)
    assert counts.resumed > 0
    assert counts.given_up == 0
    wait_for_replicas(trio, 3, gone=killed)
    assert trio.speak(input="and afterwards @patches=4@").status_code == 200


def test_a_stopped_engine_costs_no_client_anything(trio: Server) -> None:
    """One replica's engine fails for good; it is replaced without waiting for three failed health checks."""
    before = wait_for_replicas(trio, 3)
    crowd = Crowd(trio, 9, patches=300)
    crowd.wait_until_all_hear_something()
    poison = SynthRequest(text="one step too many @fail=step:1@", seed=1)
    with suppress(Exception):
        list(trio.replica.options(stream=True, method_name="synthesize_stream").remote(poison))
    crowd.check()
    counts = failovers(trio)
    assert counts.given_up == 0
    until = time.monotonic() + WAIT_S
    while set(before) <= set(trio.replica_pids()):
        assert time.monotonic() < until, "the replica whose engine stopped is still there"
        time.sleep(0.05)
    wait_for_replicas(trio, 3)


def test_handles_do_not_notice_either(trio: Server) -> None:
    wait_for_replicas(trio, 3)
    requests = [SynthRequest(text=f"by handle {n} " * 20 + "@patches=300@", seed=n) for n in range(6)]
    streams = [
        trio.handle.options(stream=True, _by_reference=bool(n % 2), method_name="synthesize_stream").remote(request)
        for n, request in enumerate(requests[:4])
    ]
    results = [trio.handle.synthesize.remote(request) for request in requests[4:]]
    first = [next(iter(stream)) for stream in streams]
    killed = kill_one(trio)
    for request, begun, stream in zip(requests, first, streams, strict=False):
        chunks = [begun, *stream]
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        audio = b"".join(chunk.samples.tobytes() for chunk in chunks)
        assert audio == render_alone(request, stream=True).samples.tobytes()
    for request, response in zip(requests[4:], results, strict=True):
        assert response.result(timeout_s=WAIT_S).samples.tobytes() == render_alone(request).samples.tobytes()
    wait_for_replicas(trio, 3, gone=[killed])


@pytest.mark.slow
def test_a_redeploy_during_a_stream_loses_no_sample(trio: Server, deploy: Callable[..., Server]) -> None:
    """V8: routers and replicas are replaced, and both let their answers finish."""
    before = wait_for_replicas(trio, 3)
    crowd = Crowd(trio, 6, patches=600)
    crowd.wait_until_all_hear_something()
    deploy("trio", **SETTINGS, replica_drain_s=0.5)
    assert trio.speak(input="by the new ones @patches=4@").status_code == 200
    crowd.check()
    wait_for_replicas(trio, 3, gone=before)


@pytest.mark.slow
def test_replicas_removed_in_a_hurry_cost_no_client_anything(trio: Server, deploy: Callable[..., Server]) -> None:
    """Half a second for answers of six: what the old replicas cannot finish goes on at the new ones."""
    before = wait_for_replicas(trio, 3)
    crowd = Crowd(trio, 6, patches=600)
    crowd.wait_until_all_hear_something()
    deploy("trio", **SETTINGS, replica_drain_s=0.5)
    crowd.check()
    wait_for_replicas(trio, 3, gone=before)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_replica_every_few_seconds(deploy: Callable[..., Server]) -> None:
    """Thirty-two streams; whenever all three replicas are there, every three seconds at most, one is killed."""
    server = deploy("often", **SETTINGS | {"max_batch": 11, "request_timeout_s": 900.0})
    wait_for_replicas(server, 3)
    crowd = Crowd(server, 32, patches=1000)
    crowd.wait_until_all_hear_something()
    kills = 0
    while crowd.listening and kills < 8:
        with suppress(IndexError):
            kill_one(server)
            kills += 1
        until = time.monotonic() + 3.0
        while crowd.listening and (time.monotonic() < until or len(server.replica_pids()) < 3):
            time.sleep(0.05)
    crowd.check()
    counts = failovers(server)
    print(f"{kills} kills: {counts}")  # noqa: T201
    assert kills >= 3
    assert counts.resumed > 0
    assert counts.given_up == 0
    wait_for_replicas(server, 3)
