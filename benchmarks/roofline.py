"""How far a step is from the floor of the machine.

The floor is what a step cannot avoid: every weight it multiplies by read once for each run, every cached position read
once, every multiply-add done, at the bandwidth and the matrix rate that this machine shows in the same process. Small
models live in the processor's cache, where the floor of the memory does not bind; operators' own cost does.

    python -m benchmarks.roofline --size 100m
    python -m benchmarks.roofline --size 2b --predict 4.8e12 9.9e14 --dtype bfloat16    # an H200, by its data sheet
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.checkpoints import SIZES, checkpoint, configuration
from benchmarks.tables import report
from voxr_ray.cli.tables import median
from voxr_ray.messages import SynthRequest
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel
from voxr_ray.voxcpm2.solver import euler_steps
from voxr_ray.voxcpm2.step_cost import StepCost, step_cost

BANDWIDTH_BYTES = 256 * 2**20
MATRIX = 768
REQUEST = SynthRequest(text="How far is this from the floor?")


def fastest(run: Callable[[], Any], device: torch.device, repeats: int = 7) -> float:
    """Seconds of the fastest of a few runs: a machine's ability, not its mood."""
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start_s)
    return min(times[1:])


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a sum over memory larger than any cache reads."""
    block = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    return BANDWIDTH_BYTES / fastest(block.sum, device)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a square matrix product."""
    size = MATRIX if device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / fastest(lambda: left @ right, device)


def seat(model: VoxCPM2SlotModel, slot: int) -> None:
    """Seat a request."""
    work = model.prefill(model.plan(REQUEST), None, None)
    while True:
        try:
            next(work)
        except StopIteration as end:
            model.admit(slot, end.value, slot)
            return


def steps(model: VoxCPM2SlotModel, rows: int, count: int) -> tuple[float, float]:
    """Median seconds and median CPU seconds of a step with its decode."""
    for slot in range(rows):
        seat(model, slot)
    walls, cpus = [], []
    for index in range(count + 2):
        cpu_s, start_s = time.process_time(), time.perf_counter()
        model.step(rows, REQUEST.sampler)
        model.decode(range(rows))
        if index >= 2:
            walls.append(time.perf_counter() - start_s)
            cpus.append(time.process_time() - cpu_s)
    for slot in range(rows):
        model.release(slot)
    return median(walls), median(cpus)


def cost_of(config: ModelConfig, dtype: torch.dtype, device: str, length: int) -> StepCost:
    """What a step costs with the default sampler."""
    calls = len(euler_steps(REQUEST.inference_timesteps))
    cache_bytes = 4 if device == "cpu" else dtype.itemsize
    return step_cost(config, solver_calls=calls, length=length, weight_bytes=dtype.itemsize, cache_bytes=cache_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a step with the floor of the machine.")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--length", type=int, default=256, help="cached positions that the floor counts")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--predict", type=float, nargs=2, metavar=("BYTES_PER_S", "OPERATIONS_PER_S"),
        help="compute the floor of a machine with these rates, and measure nothing",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="also write the table here")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    config = ModelConfig.model_validate(configuration(arguments.size))
    cost = cost_of(config, dtype, arguments.device, arguments.length)
    patch_s = config.patch_size * config.audio_vae_config.decoder_hop / config.audio_vae_config.out_sample_rate
    if arguments.predict:
        bytes_per_s, operations_per_s = arguments.predict
        model = None
    else:
        device = torch.device(arguments.device)
        bytes_per_s, operations_per_s = bandwidth(device), matrix_rate(device, dtype)
        model = load_slot_model(
            str(checkpoint(arguments.size)),
            device=arguments.device,
            dtype=arguments.dtype,
            threads=arguments.threads,
        )
        model.open(max(arguments.rows), 512)
    lines: list[dict[str, Any]] = []
    for rows in tqdm(arguments.rows, unit="width", disable=None):
        floor_s = cost.floor_s(rows, bytes_per_s=bytes_per_s, operations_per_s=operations_per_s)
        line: dict[str, Any] = {
            "rows": rows,
            "MB read": cost.bytes_moved(rows) / 1e6,
            "GFLOP": cost.operations(rows) / 1e9,
            "floor, ms": floor_s * 1e3,
            "floor's audio s/s": rows * patch_s / floor_s,
        }
        if model is not None:
            wall_s, cpu_s = steps(model, rows, arguments.steps)
            line |= {
                "step, ms": wall_s * 1e3,
                "CPU, ms": cpu_s * 1e3,
                "step / floor": wall_s / floor_s,
                "CPU / floor": cpu_s / floor_s,
            }
        lines.append(line)
    title = f"{arguments.size}, {arguments.dtype}: {bytes_per_s / 1e9:.3g} GB/s, {operations_per_s / 1e9:.3g} GFLOP/s"
    report(title, lines, arguments.json)
    print()
    for part in cost.parts:
        print(f"{part.name}: {part.weights / 1e6:.3g} M weights, {part.runs} run(s), {part.positions} position(s)")


if __name__ == "__main__":
    main()
