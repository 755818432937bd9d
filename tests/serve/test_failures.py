"""Failures under way: a broken stream is never a clean end, time is bounded, a hung replica is replaced."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.serve.server import WAIT_S, Server

LONG = "a text that would take very long to speak " * 10 + "@patches=never@"


def read_until_broken(server: Server, text: str, **headers: str) -> int:
    """Bytes of a stream that came before its connection broke; fails if it ended cleanly."""
    body = {"input": text, "stream": True, "response_format": "pcm"}
    received = 0
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, headers=headers, timeout=WAIT_S) as answer:
        assert answer.status_code == 200
        try:
            for part in answer.iter_raw():
                received += len(part)
        except httpx.RemoteProtocolError:
            return received
    raise AssertionError("the stream ended as if it were complete")


def test_a_failure_after_the_first_byte_breaks_the_connection(server: Server) -> None:
    received = read_until_broken(server, "text @fail=decode:20@ @patches=40@", **{"x-request-id": "broken-1"})
    assert received > 0
    lines = [line for line in server.error_lines() if "request broken-1 broke off after its first byte" in line]
    assert len(lines) == 1
    server.wait_until_idle()


@pytest.mark.parametrize("fault", ["@fail=prefill@", "@fail=decode:1@", "@audio=none@"])
def test_a_failure_before_it_is_a_json_error(server: Server, fault: str) -> None:
    for stream in (False, True):
        answer = server.speak(input=f"text {fault}", stream=stream)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
    server.wait_until_idle()


@pytest.fixture(scope="module")
def hasty(deploy: Any) -> Server:
    """One second for an answer."""
    server: Server = deploy("hasty", model={"delays": {"step": 0.02}}, request_timeout_s=1.0, max_batch=2)
    return server


class TestTimeouts:
    """Before the start a 408; after it a broken connection. The slot is free either way."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_start(self, hasty: Server, stream: bool) -> None:
        before = hasty.snapshot().record.counts.cancelled
        answer = hasty.speak(input="slow @sleep=prefill:1.5@", stream=stream)
        assert answer.status_code == 408
        assert answer.json()["error"]["code"] == "timeout"
        assert hasty.wait_until_idle().record.counts.cancelled == before + 1

    def test_in_a_buffered_render(self, hasty: Server) -> None:
        before = hasty.snapshot().record.counts.cancelled
        assert hasty.speak(input=LONG).status_code == 408
        assert hasty.wait_until_idle().record.counts.cancelled == before + 1

    def test_in_a_stream(self, hasty: Server) -> None:
        before = hasty.snapshot().record.counts
        assert read_until_broken(hasty, LONG) > 0
        after = hasty.wait_until_idle().record.counts
        assert after.cancelled == before.cancelled + 1
        assert after.finished == before.finished


@pytest.fixture(scope="module")
def mortal(deploy: Any) -> Server:
    """Looked after closely."""
    server: Server = deploy(
        "mortal",
        model={"delays": {"step": 0.01}},
        stall_timeout_s=1.0,
        health_check_period_s=0.3,
        graceful_shutdown_timeout_s=0.5,
        max_failovers=0,
    )
    return server


def wait_for_a_new_replica(server: Server) -> None:
    until = time.monotonic() + WAIT_S
    while (answer := server.speak(input="fine again @patches=4@")).status_code != 200:
        assert answer.status_code == 503, answer.text
        assert time.monotonic() < until, "no new replica came"
        time.sleep(0.05)


def test_a_hung_replica_fails_its_streams_and_is_replaced(mortal: Server) -> None:
    assert mortal.speak(input="fine @patches=4@").status_code == 200
    answer = mortal.speak(input="now it hangs @hang=step@", stream=True)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    wait_for_a_new_replica(mortal)


def test_a_killed_replica_breaks_its_streams_and_is_replaced(mortal: Server) -> None:
    body = {"input": LONG, "stream": True, "response_format": "pcm"}
    with httpx.stream("POST", f"{mortal.url}/v1/audio/speech", json=body, timeout=WAIT_S) as answer:
        parts = answer.iter_raw()
        assert next(parts)
        for pid in mortal.replica_pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts)
    wait_for_a_new_replica(mortal)


def test_a_killed_router_says_that_the_request_can_be_repeated(mortal: Server) -> None:
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(mortal.speak, input="whole, and lost @patches=200@", retry_badcase_ratio_threshold=100.0)
        mortal.wait_for(lambda snapshot: snapshot.record.batch.rows == 1)
        for pid in mortal.replica_pids("Router"):
            os.kill(pid, signal.SIGKILL)
        answer = call.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "send the request again" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"]
    wait_for_a_new_replica(mortal)


@pytest.mark.parametrize("name", ["x-request-id", "serve_multiplexed_model_id", "x-request-timeout-seconds"])
def test_headers_that_the_proxy_cannot_read_are_refused(server: Server, name: str) -> None:
    answer = httpx.get(f"{server.url}/v1/models", headers=[(name.encode(), b"caf\xe9")])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert name in answer.json()["error"]["message"]


def test_a_blank_request_id_is_replaced(server: Server) -> None:
    assert httpx.get(f"{server.url}/v1/models", headers={"x-request-id": ""}).headers["x-request-id"].strip()


def test_the_proxys_own_errors_have_the_shape_of_all_others(serve_url: str, server: Server) -> None:
    nowhere = httpx.get(f"{serve_url}/no-such-application/v1/models")
    error = nowhere.json()["error"]
    assert (nowhere.status_code, error["code"], error["param"]) == (404, "not_found", None)
    hasty = {"x-request-timeout-seconds": "0.05"}
    body = {"input": "slow @sleep=step:0.2@ @patches=20@"}
    late = httpx.post(f"{server.url}/v1/audio/speech", json=body, headers=hasty, timeout=WAIT_S)
    assert (late.status_code, late.json()["error"]["code"]) == (408, "timeout")
    server.wait_until_idle()
