"""The examples of the documentation, run as they stand against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.server import Server
from tests.unit.serve.voice_files import recording

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> list[tuple[str, str, str]]:
    return [
        (name, language, code)
        for name in ("voices.md", "websocket.md")
        for language, code in _BLOCK.findall((DOCS / name).read_text())
    ]


@pytest.mark.parametrize(("name", "language", "code"), examples(), ids=lambda value: value[:12])
def test_an_example_runs(server: Server, tmp_path: Path, name: str, language: str, code: str) -> None:
    (tmp_path / "alice.wav").write_bytes(recording())
    address = server.url.removeprefix("http://")
    assert "localhost:8000" in code
    code = code.replace("localhost:8000", address).replace('model="voxr"', 'model="fake"')
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
    spoken = next(tmp_path.glob("spoken.*")).read_bytes()
    assert len(spoken) > 44
    assert spoken.startswith(b"RIFF") == (name == "voices.md")
