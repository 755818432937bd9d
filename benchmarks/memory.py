"""What a replica's memory goes to: the formula of :mod:`voxr_ray.voxcpm2.footprint` against what is measured.

On a CPU measured is what the process has resident, so that pages nobody touched do not count, without the mapped file
of the weights, whose pages the system takes back when it needs them; on a GPU what torch has allocated. With
``--requests`` it is measured instead whether many short requests leave anything behind.

    python -m benchmarks.memory --size 100m
    python -m benchmarks.memory --requests 4000
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.checkpoints import SIZES, checkpoint
from benchmarks.roofline import REQUEST, seat
from benchmarks.tables import report
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.reply import ThreadReply
from voxr_ray.messages import Reference, SynthRequest, SynthResult
from voxr_ray.voxcpm2.footprint import footprint
from voxr_ray.voxcpm2.lanes import LENGTH_STEP, round_up
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.network import EAGER_STEPS
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel
from voxr_ray.voxcpm2.tape import MOST_TAPES

STEPS = 3
"""Steps with a decode whose peak is taken."""

LOOKS = 8
"""Points at which memory is looked at while requests run."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def status(name: str) -> int:
    """Bytes of a line of this process's status, such as ``VmRSS``."""
    line = next(line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


class Meter:
    """Bytes in use, and the most of them since the last look.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self._on_cpu = device == "cpu"
        self._libraries = status("RssFile")

    def now(self) -> int:
        """Bytes in use; forgets the most so far."""
        gc.collect()
        if not self._on_cpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        _CLEAR_REFS.write_text("5")
        return status("VmRSS") - self._mapped()

    def most(self) -> int:
        """The most since :meth:`now`."""
        return status("VmHWM") - self._mapped() if self._on_cpu else torch.cuda.max_memory_allocated()

    def _mapped(self) -> int:
        return status("RssFile") - self._libraries


def measure(size: str, *, device: str, dtype: str, width: int, capacity: int) -> Iterator[dict[str, Any]]:
    """Lines of the table, part by part."""
    meter = Meter(device)
    folder = checkpoint(size)
    needs = footprint(folder, device=device, dtype=dtype, width=width, capacity=capacity, graphs=device == "cpu")

    def line(part: str, formula: float, measured: float) -> dict[str, Any]:
        mib = 2.0**20
        return {
            "part": part,
            "formula, MiB": formula / mib,
            "measured, MiB": measured / mib,
            "ratio": measured / formula,
        }

    before = meter.now()
    if device == "cpu":
        yield line("process, before it loads a model", needs.process, before)
    model = load_slot_model(str(folder), device=device, dtype=dtype, threads=1, cuda_graphs=False)
    loaded = meter.now()
    yield line("weights", needs.weights, loaded - before)
    model.open(width, capacity)
    for slot in range(width):
        seat(model, slot)
    model.step(width, REQUEST.sampler)
    model.decode(range(width))
    lanes = model.lanes
    seated = max(each.position for each in lanes.seats.values())
    at_start = meter.now()
    caches = lanes.tensors.caches()
    half = capacity // 2
    write(caches, seated, half)
    at_half = meter.now()
    write(caches, half, capacity)
    full = meter.now()
    if device == "cpu":  # elsewhere all of it is there from the start
        position = needs.lane / cache_positions(lanes.capacity)
        yield line(
            f"{capacity - half} positions of {width} lanes", (capacity - half) * width * position, full - at_half
        )
        yield line(
            f"{capacity - seated} positions of {width} lanes", (capacity - seated) * width * position, full - at_start
        )
    held = sum(tensor.nbytes for tensor in caches)
    yield line(f"keys and values of {width} lanes (their tensors)", width * needs.lane, held)
    rows = sum(tensor.nbytes for tensor in lanes.tensors.others())
    yield line(f"decoder states and the like of {width} lanes (their tensors)", width * needs.row, rows)
    if device == "cpu":
        before_tapes = meter.now()
        record_lengths(model, capacity)
        yield line(f"recorded steps of {MOST_TAPES} lengths", needs.graphs, meter.now() - before_tapes)
    for each in lanes.seats.values():
        each.position = capacity - STEPS - 1
    rest = meter.now()
    for _ in range(STEPS):
        model.step(width, REQUEST.sampler)
        model.decode(range(width))
    yield line(f"work space of a step and a decode, {width} rows", width * needs.work, meter.most() - rest)
    yield line("all", needs.most - width * needs.kept, meter.most())


def record_lengths(model: VoxCPM2SlotModel, capacity: int) -> None:
    """Step one lane at as many lengths as recorded steps are kept."""
    give_back()
    for number in range(MOST_TAPES):
        for _ in range(EAGER_STEPS + 1):
            model.lanes.seats[0].position = min((number + 1) * LENGTH_STEP, capacity) - 1
            model.step(1, REQUEST.sampler)
    model.lanes.seats[0].pending.clear()
    give_back()


@torch.inference_mode()
def write(caches: list[torch.Tensor], start: int, end: int) -> None:
    """Fill positions of all lanes."""
    for cache in caches:
        cache[:, :, start:end] = 1.0


def cache_positions(capacity: int) -> int:
    """Positions that a lane's tensors have."""
    return round_up(capacity, LENGTH_STEP)


def short_requests(count: int) -> Iterator[SynthRequest]:
    """Requests of a few patches; every fourth speaks with a recording that nobody used before."""
    rng = np.random.default_rng(0)
    for index in range(count):
        patches = 3 + index % 3
        fields: dict[str, Any] = {}
        if index % 4 == 0:
            fields["reference"] = Reference.of_clip(rng.integers(-3000, 3000, 4000).astype(np.int16), 16_000)
        yield SynthRequest(
            text=f"Short request {index}.",
            seed=index,
            min_len=patches - 2,
            max_len=patches,
            inference_timesteps=2,
            **fields,
        )


def churn(engine: Engine, count: int, in_flight: int) -> list[int]:
    """Resident bytes after each eighth of many short requests, half of them streamed, one in nine left at once."""
    waiting: deque[ThreadReply[SynthResult]] = deque()
    looks: list[int] = []

    def end(reply: ThreadReply[SynthResult]) -> None:
        for _ in reply:
            pass

    for index, request in enumerate(tqdm(short_requests(count), total=count, desc="requests", leave=False)):
        while len(waiting) >= in_flight:
            end(waiting.popleft())
        reply: ThreadReply[SynthResult] = ThreadReply()
        engine.submit(request, reply, stream=index % 2 == 0)
        if index % 9 == 0:
            reply.cancel()
        else:
            waiting.append(reply)
        if (index + 1) % (count // LOOKS) == 0:
            while waiting:
                end(waiting.popleft())
            gc.collect()
            give_back()
            looks.append(status("VmRSS"))
    return looks


def give_back() -> None:
    """Have glibc return freed memory to the system: what it keeps comes and goes, and hides what is lost."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a replica's memory with its formula.")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=4096)
    parser.add_argument(
        "--requests", type=int, default=0, help="run so many short requests and see whether memory grows"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.requests:
        options = EngineOptions(max_batch=arguments.width, max_queue=64, reference_cache_bytes=1 << 20)
        path = str(checkpoint(arguments.size))
        with Engine(lambda: load_slot_model(path, device=arguments.device, threads=1), options) as engine:
            looks = churn(engine, arguments.requests, 2 * arguments.width)
        each = arguments.requests // LOOKS
        lines = [{"requests": each * (n + 1), "resident, MiB": look / 2**20} for n, look in enumerate(looks)]
        report(f"many short requests, {arguments.size}", lines, arguments.json)
        return
    wanted = {"device": arguments.device, "dtype": arguments.dtype}
    lines = list(measure(arguments.size, **wanted, width=arguments.width, capacity=arguments.capacity))
    report(f"memory, {arguments.size}, {arguments.device}", lines, arguments.json)


if __name__ == "__main__":
    main()
