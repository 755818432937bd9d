"""The examples of the documentation, run as they stand against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.server import Server
from tests.unit.serve.voice_files import recording

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/handles.md", "docs/index.md", "docs/page.md", "docs/voices.md", "docs/websocket.md")
"""Those whose examples are complete programs; docs/http.md has a test beside the unit tests of HTTP."""

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ELSEWHERE = ("pip install", "voxr-ray ")
"""What a fresh environment is for, and what has a test beside the unit tests of the command."""


def examples() -> list[tuple[str, str, str]]:
    return [
        (name, language, code)
        for name in PAGES
        for language, code in _BLOCK.findall((ROOT / name).read_text())
        if not code.startswith(_ELSEWHERE)
    ]


@pytest.mark.parametrize(("name", "language", "code"), examples(), ids=lambda value: value[:12])
def test_an_example_runs(server: Server, tmp_path: Path, name: str, language: str, code: str) -> None:
    import ray

    (tmp_path / "alice.wav").write_bytes(recording())
    server.forget_voice("alice")
    assert "localhost:8000" in code or "ray.init" in code
    code = code.replace("localhost:8000", server.url.removeprefix("http://")).replace('"voxr"', '"fake"')
    code = code.replace('get_app_handle("default")', f'get_app_handle("{server.name}")')
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(  # noqa: S603
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
    for spoken in [*tmp_path.glob("spoken.*"), *tmp_path.glob("hello.*")]:
        assert spoken.stat().st_size > 44
        assert spoken.suffix != ".wav" or spoken.read_bytes().startswith(b"RIFF")
