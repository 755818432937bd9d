"""Packing a training state into one small file, and taking it up elsewhere.

The file holds the averaged weights in half precision and the latents' projection, without optimizer state: what a later
training needs that cannot be made again from seeds. ``corpus``, ``teacher`` and ``latents`` are run as ever.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from training.features import Latents
from training.files import read_state, write_state

PARTS = ("lm", "decoder", "encoder")
KEPT = Path(__file__).parent / "start.pt"
"""The state that is kept beside the code."""


def _converted(content: Any, dtype: torch.dtype) -> Any:
    if isinstance(content, dict):
        return {name: _converted(value, dtype) for name, value in content.items()}
    return content.to(dtype) if isinstance(content, torch.Tensor) and content.is_floating_point() else content


def pack(work: Path, path: Path) -> None:
    """Write what ``work`` has trained so far."""
    packed: dict[str, Any] = {}
    for part in PARTS:
        if (state := read_state(work / f"{part}.pt")) is None:
            continue
        kept = {name: state[name] for name in ("average", "helpers", "done", "progress") if name in state}
        packed[part] = _converted(kept, torch.bfloat16 if part == "lm" else torch.float16)
    latents = Latents.load(work / "latents.npz")
    packed["latents"] = {"mean": latents.mean, "forward_matrix": latents.forward_matrix}
    write_state(path, packed)
    print(f"{path}: {path.stat().st_size:,} bytes: {', '.join(packed)}")


def unpack(path: Path, work: Path) -> None:
    """Lay a packed state out as the stages expect it.

    Raises:
        FileNotFoundError: There is no such file.
        FileExistsError: ``work`` has trained already.
    """
    if (packed := read_state(path)) is None:
        raise FileNotFoundError(path)
    for part in PARTS:
        if part in packed:
            target = work / f"{part}.pt"
            if target.exists():
                raise FileExistsError(f"{target} is there: unpack into a folder that has not trained")
            state = _converted(packed[part], torch.float32)
            write_state(target, {**state, "weights": state["average"]})
    work.mkdir(parents=True, exist_ok=True)
    Latents(**packed["latents"]).save(work / "latents.npz")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--file", type=Path, default=KEPT, help="the packed state")
    given = parser.parse_args()
    if given.action == "pack":
        pack(given.work, given.file)
    else:
        unpack(given.file, given.work)
