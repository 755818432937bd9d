"""``voxr-ray doctor``: what it says of this machine, and of what is made wrong for it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.command import run
from voxr_ray.cli import checks
from voxr_ray.voxcpm2.hub import default_checkpoint


@contextmanager
def listening(port: int = 0) -> Iterator[int]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture(autouse=True)
def _free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that are free now stand in for the real ones, which a cluster beside this test may have."""
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(listening()) for _ in range(3))
    monkeypatch.setattr(checks, "PORT", first)
    dashboard, head = checks._OTHER_PORTS.values()
    monkeypatch.setattr(checks, "_OTHER_PORTS", {second: dashboard, third: head})


def lines(result: object) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"ok": [], "note": [], "FAIL": []}
    for line in result.stdout.splitlines():  # type: ignore[attr-defined]
        if not line.startswith(" "):
            state, _, what = line.partition(" ")
            found[state].append(what.strip())
    return found


def test_a_machine_that_is_fine() -> None:
    result = run("doctor", "--model", "default")
    found = lines(result)
    assert (result.exit_code, found["FAIL"]) == (0, [])
    said = "\n".join(found["ok"])
    for part in ("Python 3", "torch ", "ray ", "device ", "model default: complete", "memory holds", "is free"):
        assert part in said


def test_a_taken_port_stops_a_server() -> None:
    with listening(checks.PORT), listening(next(iter(checks._OTHER_PORTS))):
        result = run("doctor")
    found = lines(result)
    assert result.exit_code == 1
    assert found["FAIL"] == [f"port {checks.PORT} is taken"]
    assert "Ray's dashboard" in found["note"][0]


def test_model_files_are_looked_at(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(default_checkpoint(), broken)
    weights = next(broken.glob("audiovae.*"))
    weights.write_bytes(weights.read_bytes()[:1000])
    for model, words in ((tmp_path / "none", "is no folder"), (broken, "audiovae"), (tmp_path, "config.json")):
        result = run("doctor", "--model", model)
        assert result.exit_code == 1
        assert any(words in line for line in result.stdout.splitlines()), result.stdout


def test_a_model_that_would_be_downloaded_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    result = run("doctor", "--model", "nobody/has-this")
    assert result.exit_code == 0
    assert "hf download nobody/has-this" in result.stdout


def test_settings_of_the_environment_are_checked() -> None:
    result = run("doctor", env={"VOXR_MAX_BATCH": "none"})
    assert result.exit_code == 1
    assert "setting max_batch = 'none'" in result.stdout
    result = run("doctor", env={"VOXR_DEVICE": "cuda"}) if not _has_gpu() else None
    assert result is None or (result.exit_code == 1 and "there is no GPU" in result.stdout)
    large = {"VOXR_NUM_REPLICAS": "1000", "VOXR_MAX_BATCH": "256", "VOXR_CONTINUOUS_CAPACITY": "4096"}
    result = run("doctor", env={"VOXR_DEVICE": "cpu"} | large)
    assert "replica(s) with all slots full need" in result.stdout


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
