"""Checks of a checkpoint that need no device: what an operator gets wrong is said before anything is deployed."""

from __future__ import annotations

from pathlib import Path

from voxr_ray.voxcpm2.settings import load_settings


def check_checkpoint(folder: Path) -> None:
    """Check files, configuration, tokenizer and the names and shapes of all tensors. Reads no weights from safetensors.

    Raises:
        CheckpointError: Something does not fit; one line says what.
    """
    # Imported here: torch takes seconds to load, and whoever only asks for this module may not want it.
    from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, check_tensors
    from voxr_ray.voxcpm2.tokenizer import TextTokenizer

    files = CheckpointFiles.find(folder)
    load_settings(folder)
    TextTokenizer(files.tokenizer)
    check_tensors(files)
