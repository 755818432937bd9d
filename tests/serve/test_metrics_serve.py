"""What a real cluster exports, and that logs know the id of a request from its arrival to the engine's thread."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable

import httpx
import numpy as np
import pytest
import soundfile

from tests.serve.server import WAIT_S, Server
from voxr_ray.messages import Reference, SynthRequest
from voxr_ray.serve.metric_names import ALL_METRICS

LONG = "a text that would take very long to speak " * 5 + "@patches=never@"
SAMPLE = re.compile(r"^(ray_voxr_\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')

RARE = {"voxr_retries", "voxr_resumed_streams", "voxr_engine_retakes", "voxr_engine_cache_evictions"}
"""Counters that nothing in this module moves; a counter has no series before it moves."""

Samples = list[tuple[str, dict[str, str], float]]


def scrape() -> Samples:
    """What Prometheus would read of this project from the cluster's only node."""
    import ray

    (node,) = ray.nodes()
    text = httpx.get(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", timeout=WAIT_S).text
    found = [SAMPLE.match(line) for line in text.splitlines()]
    return [(each[1], dict(LABEL.findall(each[2])), float(each[3])) for each in found if each]


def wait_for(server: Server, condition: Callable[[Samples], bool]) -> Samples:
    """The first scrape of one application that meets a condition."""
    until = time.monotonic() + WAIT_S
    while not condition(samples := [each for each in scrape() if each[1].get("application") == server.name]):
        assert time.monotonic() < until, samples
        time.sleep(0.2)
    return samples


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for known, having, value in samples if known == name and labels.items() <= having.items())


@pytest.fixture(scope="module")
def busy(deploy: Callable[..., Server]) -> Server:
    """An application of its own, on which everything that is counted has happened once."""
    server = deploy("counted", model={"delays": {"step": 0.002}}, max_batch=2, max_queue=0)
    clip = Reference.of_clip(np.arange(-8000, 8000, dtype=np.int16), 16_000)
    for request in (SynthRequest(text="x", reference=clip), SynthRequest(text="y", reference=clip, cfg_value=3.0)):
        server.handle.synthesize.remote(request).result()
    recording = io.BytesIO()
    soundfile.write(recording, np.sin(np.arange(16_000) / 20) * 0.5, 16_000, format="WAV")
    server.handle.encode_reference.remote(recording.getvalue()).result()
    assert server.speak(input="fine @patches=4@", stream=True).status_code == 200
    assert server.speak(input="wrong", speed=2).status_code == 400
    assert server.speak(input="broken @fail=prefill@").status_code == 500
    body = {"input": LONG, "stream": True, "response_format": "pcm"}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=WAIT_S) as one:
        ones = one.iter_raw()  # kept: an iterator that is dropped closes its answer
        assert next(ones)
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=WAIT_S) as other:
            others = other.iter_raw()
            assert next(others)
            assert server.speak(input="no room").status_code == 503
    with pytest.raises(httpx.RemoteProtocolError):
        server.speak(input="text @fail=decode:20@ @patches=40@", stream=True)
    server.wait_until_idle()
    return server


def test_every_metric_of_the_table_is_exported_and_no_other(busy: Server) -> None:
    expected = {name for metric in ALL_METRICS if metric.name not in RARE for name in metric.exported}
    samples = wait_for(busy, lambda samples: expected <= {name for name, _, _ in samples})
    known = {name for metric in ALL_METRICS for name in metric.exported}
    assert {name for name, _, _ in samples} <= known
    for name, labels, _ in samples:
        (metric,) = [metric for metric in ALL_METRICS if name in metric.exported]
        assert set(metric.labels) <= labels.keys()
        assert {"application", "deployment", "replica"} <= labels.keys()


def test_what_happened_is_what_is_exported_and_nothing_is_left_behind(busy: Server) -> None:
    def told(samples: Samples) -> bool:
        return (
            total(samples, "ray_voxr_renders_total", outcome="cancelled") == 2
            and total(samples, "ray_voxr_engine_cancelled_total") == 2
        )

    samples = wait_for(busy, told)
    assert total(samples, "ray_voxr_renders_total", outcome="served") == 3
    assert total(samples, "ray_voxr_renders_total", outcome="refused", error="Overloaded") == 1
    assert total(samples, "ray_voxr_renders_total", outcome="failed", error="ModelError") == 2
    assert total(samples, "ray_voxr_http_errors_total", status="503", code="overloaded") == 1
    assert total(samples, "ray_voxr_http_errors_total", status="400") == 1
    assert total(samples, "ray_voxr_broken_streams_total", code="internal_error") == 1
    assert total(samples, "ray_voxr_engine_refused_total", error="Overloaded") == 1
    assert total(samples, "ray_voxr_engine_cache_hits_total") == 1
    assert total(samples, "ray_voxr_first_audio_seconds_count") == 6
    assert total(samples, "ray_voxr_real_time_factor_count") == 3
    for name in ("renders_running", "samplers_running", "engine_rows", "engine_queue", "engine_renders"):
        assert total(samples, f"ray_voxr_{name}") == 0
    assert total(samples, "ray_voxr_engine_slots") == 2


@pytest.mark.parametrize("given", ["my-own-id", None])
def test_the_id_of_a_request_is_in_every_log_on_its_way(busy: Server, given: str | None) -> None:
    answer = httpx.post(
        f"{busy.url}/v1/audio/speech",
        json={"input": "broken @fail=prefill@"},
        headers={} if given is None else {"x-request-id": given},
        timeout=WAIT_S,
    )
    assert answer.status_code == 500
    request_id = answer.headers["x-request-id"]
    assert given in (None, request_id)
    # The router says how it ended, the replica which call failed, and the engine's thread what failed in it.
    wanted = {"Router": "render failed", "Replica": "the prefill failed"}
    until = time.monotonic() + WAIT_S
    while wanted:
        assert time.monotonic() < until, wanted
        for part, words in list(wanted.items()):
            lines = [
                line
                for file in busy.logs.glob(f"replica_{busy.name}_{part}_*.log")
                for line in file.read_text().splitlines()
                if request_id in line and words in line
            ]
            if lines:
                del wanted[part]
        time.sleep(0.05)
