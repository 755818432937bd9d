"""What bit equality costs.

The same network steps with everything that keeps rows independent, and without: MKL's strict mode, padded matrix
products, SiLU by ``exp``, attention in blocks of a fixed size. Both run in processes of their own, in turns, and the
ratio of the median step times is the price.

    python -m benchmarks.invariance --size 100m --threads 2
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROWS = (1, 4, 16)
WARM_UP = 5


def measure(path: str, dtype: str, threads: int, steps: int, *, equality: bool) -> dict[int, float]:
    """Median seconds of a step with its decode, by number of rows."""
    import torch
    import torch.nn.functional as functional

    from voxr_ray.messages import SynthRequest
    from voxr_ray.voxcpm2 import ops
    from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
    from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel
    from voxr_ray.voxcpm2.tokenizer import TextTokenizer

    if not equality:
        ops.MIN_ROWS_FLOAT32 = ops.MIN_ROWS_HALF = 1
        ops.VALUE_BLOCK = 1 << 30
        ops.silu = functional.silu
    torch.set_num_threads(threads)
    files = CheckpointFiles.find(Path(path))
    model = VoxCPM2SlotModel(load_network(files, dtype=dtype), TextTokenizer(files.tokenizer))
    model.open(max(ROWS), 512)
    request = SynthRequest(text="What does equality cost?")
    plan = model.plan(request)
    medians: dict[int, float] = {}
    for rows in ROWS:
        for slot in range(rows):
            work = model.prefill(plan, None, None)
            while True:
                try:
                    next(work)
                except StopIteration as stop:
                    model.admit(slot, stop.value, slot)
                    break
        times = []
        for _ in range(WARM_UP + steps):
            start = time.perf_counter()
            model.step(rows, request.sampler)
            model.decode(range(rows))
            times.append(time.perf_counter() - start)
        for slot in range(rows):
            model.release(slot)
        medians[rows] = statistics.median(times[WARM_UP:])
    return medians


def child(arguments: argparse.Namespace, dtype: str, *, equality: bool) -> dict[int, float]:
    """Measure in a process of its own: MKL reads its mode once."""
    environment = {**os.environ, "MKL_CBWR": "AUTO,STRICT" if equality else ""}
    command = [sys.executable, "-m", "benchmarks.invariance", "--child", dtype, "--path", arguments.path]
    command += ["--threads", str(arguments.threads), "--steps", str(arguments.steps)]
    command += ["--equality"] if equality else []
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout  # noqa: S603
    return {int(rows): seconds for rows, seconds in json.loads(printed).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what bit equality costs.")
    parser.add_argument("--size", default="default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--equality", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        found = measure(
            arguments.path, arguments.child, arguments.threads, arguments.steps, equality=arguments.equality
        )
        print(json.dumps(found))
        return
    from benchmarks.checkpoints import checkpoint

    arguments.path = str(checkpoint(arguments.size))
    table: list[dict[str, object]] = []
    print(f"{arguments.size}, {arguments.threads} thread(s), median of {arguments.rounds} alternating rounds\n")
    print("| dtype | rows | without, ms | with, ms | ratio |")
    print("|---|---|---|---|---|")
    for dtype in ("float32", "bfloat16"):
        with_it: dict[int, list[float]] = {rows: [] for rows in ROWS}
        without: dict[int, list[float]] = {rows: [] for rows in ROWS}
        for _ in range(arguments.rounds):
            for times, equality in ((with_it, True), (without, False)):
                for rows, seconds in child(arguments, dtype, equality=equality).items():
                    times[rows].append(seconds)
        for rows in ROWS:
            ratio = statistics.median(a / b for a, b in zip(with_it[rows], without[rows], strict=True))
            off, on = (statistics.median(times[rows]) * 1e3 for times in (without, with_it))
            print(f"| {dtype} | {rows} | {off:.1f} | {on:.1f} | {ratio:.3f} |")
            table.append({"dtype": dtype, "rows": rows, "without_ms": off, "with_ms": on, "ratio": ratio})
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
