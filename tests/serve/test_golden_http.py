"""The whole real pipeline over HTTP: router, replica, engine thread, slots, network, streaming decoder, container.

The golden checkpoint gives the official samples, alone and with all cases in flight; requests with two samplers share
a replica and keep the bytes of their solo renders; the embedded default checkpoint answers the README's request.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.golden import HORIZON_SAMPLES
from tests.serve.server import Server
from voxr_ray.engine.record import StepRecord

TIMEOUT_S = 120.0
CASES = ("zero_shot_a", "zero_shot_cfg", "zero_shot_zh", "reference", "continuation", "combined")
WIDTH = 8


@pytest.fixture(scope="module")
def golden(start: Callable[..., Server], reference_data: Path) -> Server:
    """The golden checkpoint; arguments as the command line gives them, as text."""
    return start("golden", model=str(reference_data / "tiny"), max_batch=str(WIDTH), continuous_capacity="512")


def data_uri(path: Path) -> str:
    return f"data:audio/wav;base64,{base64.b64encode(path.read_bytes()).decode()}"


def body(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    """A golden case as a client sends it."""
    spec = json.loads((folder / "cases.json").read_text())[name]
    made: dict[str, Any] = {"model": "tiny", "input": spec["target_text"], "seed": spec["seed"], "retry_badcase": False}
    made |= {key: spec[key] for key in ("max_len", "cfg_value", "inference_timesteps", "prompt_text") if key in spec}
    if "reference_wav_path" in spec:
        made["ref_audio"] = data_uri(folder / spec["reference_wav_path"])
    if "prompt_wav_path" in spec:
        made["prompt_audio"] = base64.b64encode((folder / spec["prompt_wav_path"]).read_bytes()).decode()
    return made | {"response_format": "wav"} | fields


def ask(server: Server, request: dict[str, Any]) -> httpx.Response:
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=request, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer


def samples(answer: httpx.Response) -> np.ndarray:
    """int16 samples of a buffered WAV, a streamed WAV or raw PCM."""
    if answer.headers["content-type"].startswith("audio/pcm"):
        return np.frombuffer(answer.content, dtype="<i2")
    content = answer.content
    if content[4:8] == b"\xff\xff\xff\xff":
        return np.frombuffer(content[44:], dtype="<i2")
    read, rate_hz = soundfile.read(io.BytesIO(content), dtype="int16")
    assert rate_hz == int(answer.headers["x-voxr-sample-rate"])
    return np.asarray(read)


def official(folder: Path, name: str) -> np.ndarray:
    wav = np.load(folder / f"{name}.npz")["wav"].reshape(-1)
    return np.rint(np.clip(wav * 32768.0, -32768, 32767)).astype(np.int32)


def assert_official(folder: Path, name: str, answer: httpx.Response) -> None:
    got, expected = samples(answer).astype(np.int32), official(folder, name)
    assert got.shape == expected.shape
    # A sample on the edge between two steps may round either way; nothing else may differ.
    assert np.abs(got - expected)[:HORIZON_SAMPLES].max() <= 1


def steps_of(server: Server) -> tuple[StepRecord, ...]:
    """The engine's own record of its steps."""
    steps: tuple[StepRecord, ...] = server.replica.engine_steps.remote().result()
    return steps


@pytest.mark.parametrize("name", CASES)
def test_a_golden_case_alone(golden: Server, reference_data: Path, name: str) -> None:
    folder = reference_data / "cases"
    answer = ask(golden, body(folder, name))
    assert_official(folder, name, answer)
    assert answer.headers["x-voxr-takes"] == "1"
    assert answer.headers["x-voxr-sample-rate"] == "48000"


def test_all_golden_cases_at_once(golden: Server, reference_data: Path) -> None:
    """All six in flight together, four times over, streamed and whole, wav and pcm."""
    folder = reference_data / "cases"
    variants: list[dict[str, Any]] = [
        {},
        {"response_format": "pcm"},
        {"stream": True},
        {"stream": True, "response_format": "pcm"},
    ]
    asked = [(name, fields) for fields in variants for name in CASES]
    with ThreadPoolExecutor(len(asked)) as clients:
        answers = list(clients.map(lambda ask_for: ask(golden, body(folder, ask_for[0], **ask_for[1])), asked))
    for (name, _), answer in zip(asked, answers, strict=True):
        assert_official(folder, name, answer)
    golden.wait_until_idle()


def test_two_samplers_share_a_replica(golden: Server) -> None:
    """Sixteen requests, two samplers: the bytes of solo renders, and a record that shows who shared and who waited."""
    requests = [
        {
            "model": "tiny",
            "input": f"Request number {index} has something to say.",
            "seed": index,
            "inference_timesteps": 4 + 4 * (index % 2),
            "min_len": 14,
            "max_len": 14,
            "response_format": "pcm",
        }
        for index in range(16)
    ]
    alone = [ask(golden, request).content for request in requests]
    before = len(steps_of(golden))
    with ThreadPoolExecutor(len(requests)) as clients:
        together = list(clients.map(lambda request: ask(golden, request).content, requests))
    assert together == alone
    steps = steps_of(golden)[before:]
    samplers = {step.sampler.inference_timesteps for step in steps}
    assert samplers == {4, 8}
    assert max(len(step.slots) for step in steps) > 1, "rows of one sampler never shared a step"
    assert max(step.held for step in steps) > 0, "the other sampler was never held"
    changes = sum(one.sampler != other.sampler for one, other in pairwise(steps))
    assert changes <= 4, "the batch flipped between samplers"


def test_the_first_bytes_of_a_long_answer_come_early(golden: Server) -> None:
    """F5: when the first bytes of ten seconds arrive, most of the ten seconds is still to be drawn."""
    patches = 63
    request = {
        "model": "tiny",
        "input": "A long answer that is sent while it is made.",
        "min_len": patches,
        "max_len": patches,
        "seed": 1,
        "stream": True,
        "response_format": "pcm",
    }
    start = golden.snapshot().record.counts.patches
    with httpx.stream("POST", f"{golden.url}/v1/audio/speech", json=request, timeout=TIMEOUT_S) as answer:
        content = answer.iter_raw()
        received = len(next(content))
        drawn = golden.snapshot().record.counts.patches - start
        received += sum(len(piece) for piece in content)
    assert received == patches * 7680 * 2
    assert drawn < patches


def test_the_default_checkpoint_answers_the_first_request(start: Callable[..., Server]) -> None:
    """What the README's curl sends, byte for byte the same when it is sent again."""
    server = start("default")
    request = {
        "model": "voxr",
        "input": "Hello world.",
        "voice": "default",
        "response_format": "wav",
        "seed": 7,
    }
    first, again = ask(server, request), ask(server, request)
    assert first.content == again.content
    assert first.headers["x-voxr-seed"] == "7"
    assert "not for production" in first.headers["x-voxr-notice"]
    read, rate_hz = soundfile.read(io.BytesIO(first.content), dtype="float32")
    assert len(read) / rate_hz >= 4 * 0.16
    assert np.abs(read).max() > 0
