"""Measures this project's engine on command; started by :mod:`benchmarks.engine`.

A command is ``{"rows": 4, "patches": 24}``: so many streams of so many patches, submitted together.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from functools import partial
from typing import Any

from voxr_ray.cli.tables import median, quantile
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.reply import Event, ThreadReply
from voxr_ray.messages import AudioChunk, Summary, SynthRequest

TEXT = "How far is this from the limit of the machine?"


class TimedReply(ThreadReply[Summary]):
    """Notes when the first audio came."""

    def __init__(self) -> None:
        super().__init__()
        self.first_s: float | None = None

    def _deliver(self, event: Event[Summary]) -> None:
        if self.first_s is None and isinstance(event, AudioChunk):
            self.first_s = time.perf_counter()
        super()._deliver(event)


def request(seed: int, patches: int, text: str = TEXT) -> SynthRequest:
    """A request of a fixed number of patches."""
    return SynthRequest(
        text=text, seed=seed, min_len=patches, max_len=patches, retry_badcase=False, retry_badcase_ratio_threshold=100.0
    )


def measure(engine: Engine, rows: int, patches: int) -> dict[str, Any]:
    """One round of ``rows`` streams."""
    before = engine.record.snapshot().counts.steps
    cpu_s, start_s = time.process_time(), time.perf_counter()
    replies = []
    for seed in range(rows):
        reply = TimedReply()
        engine.submit(request(seed, patches), reply, stream=True)
        replies.append(reply)
    for reply in replies:
        reply.result()
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
    steps = engine.record.steps()[before - engine.record.snapshot().counts.steps :]
    full = [step for step in steps if len(step.slots) == rows]
    drawn = rows * patches
    return {
        "patches_per_s": drawn / wall_s,
        "audio_s_per_s": drawn * engine.spec.samples_per_patch / engine.spec.sample_rate_hz / wall_s,
        "cpu_ms_per_patch": cpu_s / drawn * 1e3,
        "ttfa_ms": median(reply.first_s - start_s for reply in replies if reply.first_s is not None) * 1e3,
        "step_p50_ms": quantile((step.step_s + step.decode_s for step in full), 0.5) * 1e3,
        "step_p95_ms": quantile((step.step_s + step.decode_s for step in full), 0.95) * 1e3,
        "decode_share": sum(step.decode_s for step in full) / max(1e-9, sum(s.step_s + s.decode_s for s in full)),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the engine on command.")
    parser.add_argument("path")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--capacity", type=int, default=1024)
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--pieces-per-cycle", type=int, default=EngineOptions().pieces_per_cycle)
    arguments = parser.parse_args()
    from voxr_ray.voxcpm2.loader import load_slot_model

    options = EngineOptions(
        max_batch=arguments.max_batch,
        continuous_capacity=arguments.capacity,
        record_steps=100_000,
        max_queue=256,
        pieces_per_cycle=arguments.pieces_per_cycle,
    )
    load = partial(
        load_slot_model,
        arguments.path,
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
    )
    start_s = time.perf_counter()
    with Engine(load, options) as engine:
        print(json.dumps({"load_s": time.perf_counter() - start_s}), flush=True)
        for line in sys.stdin:
            print(json.dumps(measure(engine, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
