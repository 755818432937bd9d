"""Every example, run as it stands: a process of its own, against a running server."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import soundfile

from tests.playback import decode
from tests.serve.server import Server
from tests.unit.serve.voice_files import recording

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_LINES = 40
"""Fewer than this: an example is read in one go."""


def run(name: str, folder: Path, *arguments: str, path: str = "") -> str:
    """What an example prints, run in a folder of its own. It finds the players of ``path``, and no others."""
    interpreter = [sys.executable] if name.endswith(".py") else ["bash"]
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    environment["PATH"] = os.pathsep.join(filter(None, [path, "/usr/bin", "/bin"]))
    done = subprocess.run(  # noqa: S603
        [*interpreter, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds(path: Path, audio_format: str | None = None) -> float:
    samples, rate_hz = decode(path.read_bytes(), audio_format or path.suffix[1:], 48_000)
    return len(samples) / rate_hz


@pytest.fixture(scope="module")
def speech(deploy: object) -> Server:
    """A server with room for what an example asks at a time."""
    server: Server = deploy("speech", max_batch=4, max_queue=16)  # type: ignore[operator]
    return server


@pytest.fixture
def player(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A folder with a player, which keeps what it is to play, and where it does."""
    folder = tmp_path_factory.mktemp("player")
    program, heard = folder / "aplay", folder / "heard"
    program.write_text(f'#!/bin/sh\necho "$@" >"{heard}.options"\ncat >"{heard}"\n')
    program.chmod(0o755)
    return str(folder), heard


def test_speak(speech: Server, tmp_path: Path, player: tuple[str, Path]) -> None:
    run("speak.sh", tmp_path, speech.url, path=player[0])
    assert seconds(tmp_path / "hello.mp3") > 0.05
    assert seconds(player[1], "wav") > 0.05
    assert not (tmp_path / "streamed.wav").exists()


def test_openai_client(speech: Server, tmp_path: Path) -> None:
    assert run("openai_client.py", tmp_path, speech.url) == "seed 7\n"
    assert seconds(tmp_path / "hello.opus") > 0.05
    assert seconds(tmp_path / "streamed.wav") > 0.05


def test_stream_to_player(speech: Server, tmp_path: Path, player: tuple[str, Path]) -> None:
    run("stream_to_player.py", tmp_path, speech.url, path=player[0])
    assert len(player[1].read_bytes()) > 1000
    assert "-f S16_LE" in player[1].with_suffix(".options").read_text()


def test_stream_to_a_file(speech: Server, tmp_path: Path) -> None:
    if Path("/usr/bin/aplay").exists():
        pytest.skip("this machine has a player")
    assert "16-bit mono" in run("stream_to_player.py", tmp_path, speech.url)
    assert len((tmp_path / "streamed.pcm").read_bytes()) > 1000


def test_clone_a_voice(speech: Server, tmp_path: Path) -> None:
    (tmp_path / "alice.wav").write_bytes(recording())
    for _ in range(2):  # it leaves nothing behind
        run("clone_a_voice.py", tmp_path, "alice.wav", speech.url)
    assert seconds(tmp_path / "once.flac") > 0.05
    assert seconds(tmp_path / "stored.flac") > 0.05


@pytest.mark.slow
def test_from_another_app(speech: Server, tmp_path: Path) -> None:
    run("from_another_app.py", tmp_path, speech.name)
    assert seconds(tmp_path / "train.mp3") > 0.05


def test_object_refs(speech: Server, tmp_path: Path) -> None:
    printed = run("object_refs.py", tmp_path, speech.name)
    lines = [line for line in printed.splitlines() if line.endswith(" dB")]  # Ray may have something to say as well
    assert [line.partition(":")[0] for line in lines] == ["One text.", "Another one.", "And a third."], printed


@pytest.mark.slow
def test_ray_data(speech: Server, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    import pyarrow.parquet

    assert "s of speech in spoken/" in run("ray_data.py", tmp_path, speech.name)
    rows = pyarrow.parquet.read_table(tmp_path / "spoken").to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(8))
    for row in rows:
        samples, rate_hz = soundfile.read(io.BytesIO(row["flac"]))
        assert len(samples) / rate_hz == pytest.approx(row["seconds"])


def test_llm_to_speech(speech: Server, tmp_path: Path) -> None:
    run("llm_to_speech.py", tmp_path, speech.url.replace("http", "ws", 1))
    assert len((tmp_path / "spoken.pcm").read_bytes()) > 1000


def test_all_of_them_are_short_and_run_here() -> None:
    here = Path(__file__).read_text()
    for example in EXAMPLES.iterdir():
        if example.suffix in (".py", ".sh"):
            assert f'"{example.name}"' in here
            assert len(example.read_text().splitlines()) < MOST_LINES, example.name
