"""From a model's name to a folder; the hub is a fake, since no test may need a network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from voxr_ray.errors import CheckpointError
from voxr_ray.voxcpm2 import hub
from voxr_ray.voxcpm2.hub import default_checkpoint, resolve_checkpoint


class FakeHub:
    """A hub with one repository."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.files = ["README.md", "config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"]
        self.files += ["audiovae.pth"]
        self.online = True
        self.cached = False
        self.broken = False
        self.no_network: type[Exception] = ConnectionError
        self.folder = folder
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(hub, "HfApi", lambda: self)
        monkeypatch.setattr(hub, "snapshot_download", self.snapshot_download)

    def model_info(self, repository: str) -> SimpleNamespace:
        if not self.online:
            raise self.no_network("no route")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.files])

    def snapshot_download(self, repository: str, **arguments: Any) -> str:
        self.asked.append(arguments)
        if self.broken and not arguments.get("local_files_only"):
            raise self.no_network("half-way")
        if arguments.get("local_files_only") and not self.cached:
            raise LocalEntryNotFoundError("not there")
        return str(self.folder)


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    return FakeHub(monkeypatch, tmp_path)


def test_the_embedded_checkpoint() -> None:
    assert resolve_checkpoint("default") == default_checkpoint()
    assert (default_checkpoint() / "config.json").is_file()


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_checkpoint(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "voice").mkdir()
    assert resolve_checkpoint("~/voice") == tmp_path / "voice"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "nowhere", "a/b/c"])
def test_what_is_neither_folder_nor_repository(name: str) -> None:
    with pytest.raises(CheckpointError, match="no folder on this machine"):
        resolve_checkpoint(name)


def test_a_repository_is_downloaded_without_what_it_holds_twice(fake_hub: FakeHub) -> None:
    assert resolve_checkpoint("openbmb/VoxCPM2") == fake_hub.folder
    (arguments,) = fake_hub.asked
    assert set(arguments["allow_patterns"]) >= {"config.json", "model.safetensors", "audiovae.pth"}
    assert "pytorch_model.bin" not in arguments["allow_patterns"]


class LibraryError(Exception):
    """What an HTTP library may raise: nothing says that it is an OSError."""


@pytest.mark.parametrize("no_network", [ConnectionError, TimeoutError, LibraryError])
def test_a_download_that_breaks_off(fake_hub: FakeHub, no_network: type[Exception]) -> None:
    fake_hub.broken, fake_hub.no_network = True, no_network
    with pytest.raises(CheckpointError, match="downloading openbmb/VoxCPM2 failed: half-way"):
        resolve_checkpoint("openbmb/VoxCPM2")


@pytest.mark.parametrize("no_network", [ConnectionError, TimeoutError, LibraryError])
def test_offline_with_and_without_an_earlier_download(fake_hub: FakeHub, no_network: type[Exception]) -> None:
    fake_hub.online, fake_hub.no_network = False, no_network
    with pytest.raises(CheckpointError, match="hub cannot be reached") as caught:
        resolve_checkpoint("openbmb/VoxCPM2")
    assert "\n" not in str(caught.value)
    fake_hub.cached = True
    assert resolve_checkpoint("openbmb/VoxCPM2") == fake_hub.folder
