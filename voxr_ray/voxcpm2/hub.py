"""From what an operator calls a model to a folder on this machine. Needs no torch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import tqdm as HubBar  # type: ignore[attr-defined]

from voxr_ray.errors import CheckpointError
from voxr_ray.voxcpm2.progress import Progress

_log = logging.getLogger(__name__)

DEFAULT_MODEL = "default"
"""Name of the checkpoint inside the package."""

VOICES_FOLDER = "voices"
"""Folder of a checkpoint with recordings of the voices that come with it."""

SIDE_FILES = ("config.json", "tokenizer.json", "voxr.json")
WEIGHT_FILES = (("model.safetensors", "pytorch_model.bin"), ("audiovae.safetensors", "audiovae.pth"))
"""Files that hold the same weights, the preferred one first."""


def default_checkpoint() -> Path:
    """The checkpoint that is part of the package."""
    return Path(__file__).parent / "default"


def resolve_checkpoint(model: str) -> Path:
    """Find a model: the embedded one, a folder, or a repository on the Hugging Face hub.

    A repository is downloaded once, and found in the hub's cache from then on, with or without a network. The hub shows
    progress bars; without a terminal there are lines in the log.

    Args:
        model: ``default``, a folder, or ``organisation/name``.

    Raises:
        CheckpointError: There is no such folder or repository, or it cannot be downloaded.
    """
    if model == DEFAULT_MODEL:
        return default_checkpoint()
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not _is_repository(model):
        raise CheckpointError(
            f"model {model!r} is no folder on this machine; give a folder with config.json, a hub id such as "
            f"openbmb/VoxCPM2, or {DEFAULT_MODEL!r}"
        )
    return _download(model)


def local_checkpoint(model: str) -> Path | None:
    """The folder of a model as far as it is on this machine: looking for it never starts a download.

    Raises:
        CheckpointError: It names neither a folder nor a repository.
    """
    if model != DEFAULT_MODEL and not Path(model).expanduser().is_dir() and _is_repository(model):
        try:
            return Path(snapshot_download(model, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError, OSError):
            return None
    return resolve_checkpoint(model)


def shipped_voices(model: str) -> Path | None:
    """The folder of voices that come with a model, if there is one on this machine.

    Only of the embedded model and of models in folders: looking must never start a download.
    """
    folder = (default_checkpoint() if model == DEFAULT_MODEL else Path(model).expanduser()) / VOICES_FOLDER
    return folder if folder.is_dir() else None


def _is_repository(model: str) -> bool:
    """Whether a model that is no folder may be a repository, by its name."""
    return not model.startswith((".", "/", "~")) and model.count("/") == 1


def _download(repository: str) -> Path:
    try:
        present = {sibling.rfilename for sibling in HfApi().model_info(repository).siblings or []}
    except (RepositoryNotFoundError, HFValidationError) as err:
        raise CheckpointError(f"model {repository!r} is neither a folder here nor a repository on the hub") from err
    except Exception as err:  # noqa: BLE001 - without a network it raises whatever its HTTP library raises
        return _cached(repository, err)
    weights = [next((name for name in names if name in present), names[0]) for names in WEIGHT_FILES]
    _log.info("model %s comes from the hub, unless it did before", repository)
    try:
        return Path(snapshot_download(repository, allow_patterns=[*SIDE_FILES, *weights], tqdm_class=_Bar))
    except Exception as err:  # likewise
        raise CheckpointError(f"downloading {repository} failed: {err}") from err


class _Bar(HubBar):
    """The hub's bar. Where no terminal shows it, that of all bytes writes lines instead."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # The hub has two for the bytes, of what is sent and of what is stored; the second also counts what was kept.
        of_bytes = options.get("unit") == "B" and options.get("name") == "huggingface_hub.snapshot_download"
        self._progress = Progress("downloading the model") if of_bytes else None
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    def update(self, n: float | None = 1) -> bool | None:
        """So many more are done."""
        if self.disable and self._progress is not None:
            self._progress.total = self.total
            self._progress.add(int(n or 0))
        shown: bool | None = super().update(n)
        return shown


def _cached(repository: str, cause: Exception) -> Path:
    """What was downloaded before, for machines that cannot reach the hub now."""
    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except (LocalEntryNotFoundError, OSError) as err:
        raise CheckpointError(
            f"model {repository!r} is not on this machine and the hub cannot be reached ({type(cause).__name__}); "
            "download it elsewhere and give its folder"
        ) from err
