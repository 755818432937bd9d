"""Reading and writing what the stages hand to each other. A file is there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch


def write_json(path: Path, content: Any) -> None:
    """Write JSON, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(content, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> Any:
    """Read JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write an ``.npz``, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    os.replace(partial, path)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a training checkpoint, creating the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    torch.save(state, partial)
    os.replace(partial, path)


def read_state(path: Path) -> dict[str, Any] | None:
    """Read a training checkpoint, if there is one."""
    return torch.load(path, map_location="cpu", weights_only=True) if path.is_file() else None
