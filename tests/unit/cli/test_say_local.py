"""``voxr-ray say`` with an engine of its own: the embedded checkpoint, without a cluster."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from tests.unit.cli.command import interrupt_in_part_two, run, started
from voxr_ray.cli.local import open_local
from voxr_ray.cli.main import cli
from voxr_ray.encode import AudioFormat, encode_whole
from voxr_ray.serve.ingress import build_http_app

BOOK = (
    "The kettle is on. Seven small boats left the harbour. Please keep to the left until you reach the second bridge."
)


def test_the_embedded_voice_speaks(tmp_path: Path) -> None:
    """As a person does it: a process that starts, speaks and ends; the variables of the engine are a server's."""
    (tmp_path / "book.txt").write_text(BOOK, "utf-8")
    with started("say", tmp_path / "book.txt", "-o", tmp_path / "book.wav", "--seed", 3, "--voice", "slt") as process:
        said = process.communicate(timeout=280)[1].decode()
    assert process.returncode == 0, said
    assert "seed 3" in said
    assert "not for production" in said
    assert "Started a local Ray instance" not in said
    samples, rate_hz = soundfile.read(tmp_path / "book.wav", dtype="float32")
    assert len(samples) / rate_hz > 3.0
    assert float(np.sqrt(np.mean(samples**2))) > 0.01


def test_its_audio_is_that_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal request, equal seed: the file on disk holds what streams to standard output."""
    monkeypatch.setenv("VOXR_API_KEY", "for servers")
    options = ["--seed", 3, "--steps", 2, "-q"]
    assert run("say", "Hello world.", "-o", tmp_path / "hello.flac", *options).exit_code == 0
    streamed = run("say", "Hello world.", "-o", "-", *options)
    samples, rate_hz = soundfile.read(io.BytesIO(streamed.stdout_bytes), dtype="float32")
    assert len(samples) > 0.3 * rate_hz
    assert (tmp_path / "hello.flac").read_bytes() == encode_whole(samples, AudioFormat.FLAC, rate_hz)[0]


async def test_a_file_is_what_a_server_would_answer(tmp_path: Path) -> None:
    options = ["--seed", 3, "--steps", 2, "--voice", "slt", "-q"]
    assert (await asyncio.to_thread(run, "say", BOOK, "-o", tmp_path / "book.mp3", *options)).exit_code == 0
    speaker = await asyncio.to_thread(open_local, {}, {})
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(build_http_app(speaker._service)), base_url="http://here", timeout=280
    ) as client:
        body = {"input": BOOK, "seed": 3, "inference_timesteps": 2, "voice": "slt"}
        answer = await client.post("/v1/audio/speech", json=body)
    await speaker.close()
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.content == (tmp_path / "book.mp3").read_bytes()


def test_ctrl_c_keeps_what_was_spoken(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK * 20, "utf-8")
    with started("say", tmp_path / "book.txt", "-o", tmp_path / "book.wav", "--steps", 2, "--progress") as process:
        rest = interrupt_in_part_two(process, 120)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "stopped after" in rest
    assert soundfile.info(tmp_path / "book.wav").frames > 0


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    result = run("say", "hi", "-o", tmp_path / "x.wav", "--model", tmp_path / "nothing")
    assert result.exit_code == 1
    assert "is no folder on this machine" in result.stderr
    result = run("say", "hi", "-o", tmp_path / "x.wav", env={"VOXR_MAX_QUEUES": "1"})
    assert result.exit_code == 1
    assert "VOXR_MAX_QUEUES is no setting" in result.stderr


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is one")
    done = run("say", "Hello.", "-o", tmp_path / "hello.wav", "--device", "cuda")
    assert done.exit_code == 1
    assert "device 'cuda' cannot be used" in done.stderr
    assert not (tmp_path / "hello.wav").exists()


def test_help_names_what_there_is() -> None:
    for name, command in cli.commands.items():
        text = run(name, "--help").stdout
        assert f"voxr-ray {name}" in text
        for parameter in command.params:
            assert all(option in text for option in parameter.opts if option.startswith("--"))
