"""``voxr-ray voices`` against a real server, and against a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.command import ok, run
from tests.unit.serve.serving import running
from tests.unit.serve.voice_files import recording


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path, url: str) -> list[object]:
    """Options that say where voices are."""
    return ["--url", url] if request.param == "server" else ["--voices-dir", tmp_path / "voices"]


@pytest.mark.parametrize("where", ["server", "folder"], indirect=True)
def test_a_voice_comes_and_goes(where: list[object], tmp_path: Path) -> None:
    (tmp_path / "alice.wav").write_bytes(recording())
    added = ok("voices", "add", "alice", tmp_path / "alice.wav", "--text", "It is me.", "--consent", "signed", *where)
    assert "added alice" in added.stderr
    (line,) = [line for line in ok("voices", "list", *where).stdout.splitlines() if line.startswith("alice")]
    assert line.endswith("transcript")
    taken = run("voices", "add", "Alice", tmp_path / "alice.wav", *where)
    assert (taken.exit_code, taken.stderr.count("\n")) == (2, 1)
    assert "delete it first" in taken.stderr
    ok("voices", "rm", "alice", *where)
    assert "alice" not in ok("voices", "list", *where).stdout
    gone = run("voices", "rm", "alice", *where)
    assert gone.exit_code == 2
    assert "no voice is named 'alice'" in gone.stderr


def test_an_added_voice_speaks(url: str, tmp_path: Path) -> None:
    (tmp_path / "bob.wav").write_bytes(recording(2))
    ok("voices", "add", "bob", tmp_path / "bob.wav", "--url", url)
    ok("say", "Hello.", "--voice", "bob", "--url", url, "-o", tmp_path / "bob.pcm", "--seed", 7)
    ok("say", "Hello.", "--url", url, "-o", tmp_path / "default.pcm", "--seed", 7)
    assert (tmp_path / "bob.pcm").read_bytes() != (tmp_path / "default.pcm").read_bytes()
    ok("voices", "rm", "bob", "--url", url)


def test_mistakes(url: str, tmp_path: Path) -> None:
    (tmp_path / "noise.wav").write_bytes(b"RIFF, or so")
    result = run("voices", "add", "noise", tmp_path / "noise.wav", "--url", url)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert run("voices", "add", "noise", tmp_path / "none.wav", "--url", url).exit_code == 2
    assert run("voices", "list", "--url", url, "--voices-dir", tmp_path).exit_code == 2
    with running({"api_keys": ["a-key"]}) as (address, _):
        assert run("voices", "list", "--url", f"http://{address}").exit_code == 2
        ok("voices", "list", "--url", f"http://{address}", "--api-key", "a-key")
