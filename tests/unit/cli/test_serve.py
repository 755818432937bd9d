"""``voxr-ray serve`` is ``serve run`` of this application. What is wrong is found before any cluster is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli import command
from tests.unit.cli.command import started


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nobody has started a cluster."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that something listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_what_is_wrong_is_said_in_one_line() -> None:
    port = free()
    for arguments, words in (
        (["nonsense=1", "--port", port], "'nonsense' is no setting"),
        (["--no-such-option", "--port", port], "--no-such-option"),
    ):
        with started("serve", *arguments) as process:
            said = process.communicate(timeout=120)[1].decode()
        assert process.returncode in (1, 2)
        (line,) = [line for line in said.splitlines() if line.startswith("Error: ")]
        assert words in line
        assert "Traceback" not in said


def test_a_port_that_is_taken(taken: int) -> None:
    done = command.run("serve", "--port", taken)
    assert done.exit_code == 1
    assert f"port {taken} is taken" in done.output
    assert "--port" in done.output


@pytest.mark.parametrize(("variable", "arguments"), [("RAY_ADDRESS", []), ("", ["--address", "ray://there:10001"])])
def test_a_cluster_that_runs_has_its_port(variable: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if variable:
        monkeypatch.setenv(variable, "auto")
    done = command.run("serve", "--port", free(), *arguments)
    assert done.exit_code == 2
    assert "http_options" in done.output


def test_a_deployment_file_is_for_serve_run() -> None:
    done = command.run("serve", "serve.yaml")
    assert done.exit_code == 2
    assert "serve run serve.yaml" in done.output
