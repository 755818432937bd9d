"""``voxr-ray say --url`` against a real server on the fake model."""

from __future__ import annotations

import base64
import http.server
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.fakes.solo import render_alone
from tests.playback import MAGIC, decode
from tests.unit.cli.command import interrupt_in_part_two, ok, run, started
from tests.unit.serve.serving import running
from tests.unit.serve.voice_files import recording
from voxr_ray.audio import pcm16_bytes, to_pcm16
from voxr_ray.cli.remote import PART_WEIGHT
from voxr_ray.encode import AudioFormat, encode_whole
from voxr_ray.messages import SynthRequest

BOOK = "\n\n".join(
    f"Paragraph {n} of this book says a little more than the one before it. @patches=5@" for n in range(60)
)
SPOKEN = render_alone(SynthRequest(text="Hello world.", seed=7))
RATE_HZ = SPOKEN.summary.sample_rate_hz


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_every_suffix_is_a_format(url: str, tmp_path: Path, audio_format: AudioFormat) -> None:
    path = tmp_path / f"hello.{audio_format}"
    result = ok("say", "Hello world.", "--url", url, "-o", path, "--seed", 7)
    assert result.stdout == ""
    assert "seed 7" in result.stderr
    # The server's answer came as 16-bit samples.
    samples = to_pcm16(SPOKEN.samples).astype(np.float32) / 32_768
    assert path.read_bytes() == encode_whole(samples, audio_format, RATE_HZ)[0]


def test_a_book_is_spoken_in_one_voice(served: tuple[str, object], tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(BOOK, "utf-8")
    result = ok("say", book, "--url", served[0], "-o", tmp_path / "book.opus", "--seed", 1, "--progress")
    samples, _ = decode((tmp_path / "book.opus").read_bytes(), "opus", 48_000)
    parts = [line for line in result.stderr.replace("\r", "\n").splitlines() if "part " in line]
    assert "100%" in parts[-1]
    total = int(parts[-1].split("part ")[1].split(",")[0].split("/")[1])
    assert total > 10
    assert len(samples) == 2_400 * total, "five patches of each"
    assert len({line.split("part ")[1].split(",")[0] for line in parts}) > 2
    calls = [call for call in served[1].replica._engine.model.calls if call.op == "encode"]  # type: ignore[attr-defined]
    assert calls, "the parts after the first have no reference"


def test_standard_input_and_output(url: str) -> None:
    result = ok("say", "-", "--url", url, "-o", "-", "--seed", 7, "-f", "pcm", input="Hello world.")
    assert result.stdout_bytes == pcm16_bytes(SPOKEN.samples)
    wav = ok("say", "-", "--url", url, "-o", "-", "--seed", 7, input="Hello world.").stdout_bytes
    assert wav.startswith(MAGIC["wav"])
    assert wav[44:] == pcm16_bytes(SPOKEN.samples)


def test_options_reach_the_request(url: str, tmp_path: Path) -> None:
    options = ["--cfg", 3, "--steps", 5, "--instructions", "slowly", "--seed", 7]
    ok("say", "Hello world.", "--url", url, "-o", tmp_path / "out.pcm", *options)
    wanted = SynthRequest(text="(slowly)Hello world.", seed=7, cfg_value=3.0, inference_timesteps=5)
    assert (tmp_path / "out.pcm").read_bytes() == pcm16_bytes(render_alone(wanted).samples)


def test_a_recording_is_a_voice(url: str, tmp_path: Path) -> None:
    (tmp_path / "me.wav").write_bytes(recording())
    made = []
    for options in (
        [],
        ["--voice", tmp_path / "me.wav"],
        ["--voice", tmp_path / "me.wav", "--voice-text", "It is me."],
    ):
        ok("say", "Hello world.", "--url", url, "-o", tmp_path / "out.pcm", "--seed", 7, *options)
        made.append((tmp_path / "out.pcm").read_bytes())
    assert len(set(made)) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nope.txt", "-o", "x.wav"], 2, "there is no file nope.txt"),
        (["  ", "-o", "x.wav"], 2, "blank"),
        (["hi", "-o", "x.doc"], 2, "its suffix is no format"),
        (["hi", "-o", "no/such/folder/x.wav"], 2, "there is no folder"),
        (["hi", "-o", "x.wav", "--voice", "zoe"], 2, "no voice is named 'zoe'"),
        (["hi", "-o", "x.wav", "--voice", "./zoe.wav"], 2, "there is no such file"),
        (["hi", "-o", "x.wav", "--voice", "zoe.wav"], 2, "there is no such file"),
        (["hi", "-o", "x.wav", "--voice-text", "hi"], 2, "--voice-text needs"),
        (["hi", "-o", "x.wav", "--device", "cpu"], 2, "--device is for an engine in this process"),
        (["?!", "-o", "x.wav"], 2, "nothing to pronounce"),
        (["@fail=decode@ hi", "-o", "x.wav"], 1, "decod"),
    ],
)
def test_mistakes_are_told_in_one_line(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("say", *arguments, "--url", url)
    assert result.exit_code == code, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert words in line
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    result = run("say", "hi", "-o", tmp_path / "x.wav", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "does not answer" in result.stderr
    assert run("say", "hi", "-o", tmp_path / "x.wav", "--url", "localhost:8000").exit_code == 2


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Something that is no speech server, such as Serve's proxy beside the prefix of the application."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Keep the output of the tests clean."""


def test_a_prefix_that_was_forgotten(tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            result = run("say", "hi", "-o", tmp_path / "x.wav", "--url", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert result.exit_code == 2
    assert "route prefix" in result.stderr


def test_the_key_comes_from_the_environment(tmp_path: Path) -> None:
    with running({"api_keys": ["a-key"]}) as (address, _):
        arguments = ["say", "hi", "-o", tmp_path / "x.wav", "--url", f"http://{address}/v1"]
        assert run(*arguments).exit_code == 2
        assert run(*arguments, "--api-key", "another").exit_code == 2
        ok(*arguments, env={"VOXR_API_KEY": "a-key"})
        ok(*arguments, "--api-key", "a-key")


def test_no_room_is_a_code_of_its_own(tmp_path: Path) -> None:
    with running({"max_batch": 1, "max_queue": 0}, delays={"step": 0.05}) as (address, _):
        body = {"input": "@patches=2000@ on and on" + 50 * " and on", "stream": True, "response_format": "pcm"}
        with httpx.stream("POST", f"http://{address}/v1/audio/speech", json=body, timeout=60) as answer:
            audio = answer.iter_raw()
            next(audio)  # it has the only slot
            result = run("say", "hi", "-o", tmp_path / "x.wav", "--url", f"http://{address}")
    assert result.exit_code == 75, result.output
    assert "try again in" in result.stderr


def test_a_stream_that_breaks_is_a_failure(url: str) -> None:
    text = "hi @fail=decode:20@ @patches=40@ and on and on and on"
    result = run("say", text, "--url", url, "-o", "-", "-f", "pcm")
    assert result.exit_code == 1
    assert result.stdout_bytes
    assert "broke off" in result.stderr


class FullOnce(http.server.BaseHTTPRequestHandler):
    """A server that has no room for the second request when it comes first."""

    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if len(self.bodies) == 2:
            error = {"message": "every slot is taken", "type": "overloaded_error", "param": None, "code": "overloaded"}
            self._send(503, json.dumps({"error": error}).encode(), {"retry-after": "1"})
        else:
            self._send(200, bytes(3200), {"content-type": "audio/pcm", "x-voxr-sample-rate": "16000"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"content-length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_later_parts_wait_for_room_and_keep_the_voice(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK, "utf-8")
    handler = type("Handler", (FullOnce,), {"bodies": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            where = f"http://127.0.0.1:{server.server_address[1]}"
            ok("say", tmp_path / "book.txt", "--url", where, "-o", tmp_path / "book.wav", "--seed", 5)
        finally:
            server.shutdown()
            thread.join()
    first, refused, *others = handler.bodies
    assert refused == others[0]
    assert "ref_audio" not in first
    clips = {body["ref_audio"] for body in others}
    assert len(clips) == 1
    assert soundfile.info(io.BytesIO(base64.b64decode(clips.pop()))).frames == 1600
    assert len({body["seed"] for body in (first, *others)}) == 1 + len(others)
    assert all(len(body["input"]) <= PART_WEIGHT for body in handler.bodies)
    spoken = "".join(body["input"] for body in (first, *others))
    assert spoken.split() == BOOK.split()
    assert soundfile.info(tmp_path / "book.wav").frames == 1600 * (1 + len(others))


def test_ctrl_c_keeps_what_was_spoken(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK, "utf-8")
    with running({}, delays={"step": 0.01}) as (address, _):
        arguments = ["say", tmp_path / "book.txt", "-o", tmp_path / "book.wav", "--url", f"http://{address}"]
        with started(*arguments, "--progress") as process:
            rest = interrupt_in_part_two(process, 60)
        assert process.returncode == 130
        assert "Traceback" not in rest
        assert "stopped after 1 of" in rest
    assert soundfile.info(tmp_path / "book.wav").frames > 0


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK, "utf-8")
    with (
        running({}) as (address, _),
        started("say", tmp_path / "book.txt", "-o", "-", "-q", "--url", f"http://{address}") as process,
    ):
        assert process.stdout.read(4) == b"RIFF"  # type: ignore[union-attr]
        process.stdout.close()  # type: ignore[union-attr]
        said = process.stderr.read()  # type: ignore[union-attr]
        assert process.wait(60) == 141
        assert said == b""


@pytest.mark.parametrize("player", ["aplay", "ffplay", "paplay", "play"])
def test_it_is_played_where_there_is_a_player(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, player: str
) -> None:
    """A program of that name that keeps what it is to play."""
    program = tmp_path / player
    program.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'heard')!r}, 'wb').write(sys.stdin.buffer.read())\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ok("say", "Hello world.", "--url", url, "--seed", 7)
    heard = (tmp_path / "heard").read_bytes()
    assert heard[44 if player == "ffplay" else 0 :] == pcm16_bytes(SPOKEN.samples)


def test_a_player_that_cannot_play(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("say", "Hello world.", "--url", url)
    assert result.exit_code == 2
    assert "no player is on PATH" in result.stderr
    program = tmp_path / "aplay"
    program.write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    program.chmod(0o755)
    result = run("say", f"Hello world. {BOOK[:1000]}", "--url", url)
    assert result.exit_code == 1
    assert "ended with 3" in result.stderr
