"""Measures the official package on command; started by :mod:`benchmarks.engine`, in the official package's Python.

It needs nothing of this project. The package works sequentially, so a command names only a number of patches; the
answer has the throughput of a whole render (its fastest way) and the first audio of a streamed one (its earliest).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from voxcpm.model import VoxCPM2Model
from voxcpm.model.utils import next_and_close

TEXT = "How far is this from the limit of the machine?"


def with_dtype(path: Path, dtype: str, folder: Path) -> Path:
    """The same checkpoint, computed in another dtype: the package reads it from the configuration."""
    for file in path.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}), encoding="utf-8")
    return folder


def arguments_for(patches: int) -> dict[str, Any]:
    return {
        "target_text": TEXT,
        "prompt_cache": None,
        "min_len": patches,
        "max_len": patches,
        "retry_badcase_ratio_threshold": 100.0,
    }


def measure(model: Any, patches: int, *, first: bool = True) -> dict[str, Any]:
    """One render, and unless told otherwise the beginning of a streamed one."""
    torch.manual_seed(0)
    cpu_s, start_s = time.process_time(), time.perf_counter()
    audio, _, features = next_and_close(model._generate_with_prompt_cache(**arguments_for(patches)))
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    drawn = len(features)
    found = {
        "patches_per_s": drawn / wall_s,
        "audio_s_per_s": audio.shape[-1] / model.sample_rate / wall_s,
        "cpu_ms_per_patch": cpu_s / drawn * 1e3,
    }
    if first:
        start_s = time.perf_counter()
        stream = model.generate_with_prompt_cache_streaming(**arguments_for(patches))
        next(stream)
        found["ttfa_ms"] = (time.perf_counter() - start_s) * 1e3
        stream.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the official package on command.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    answers = sys.stdout
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        start_s = time.perf_counter()
        path = with_dtype(arguments.path, arguments.dtype, Path(folder))
        model = VoxCPM2Model.from_local(str(path), optimize=False, device=arguments.device)
        print(json.dumps({"load_s": time.perf_counter() - start_s}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(measure(model, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
