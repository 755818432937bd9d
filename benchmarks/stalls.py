"""How long a running stream waits for others' work.

One stream draws a patch a chunk. Meanwhile heavy work arrives: encodes of a one-minute recording, a request with such
a reference, a prefix of two thousand tokens, a long answer decoded beside it, fifteen newcomers at once. For each, the
longest time between the starts of two consecutive steps is given as a multiple of the median step of that width.

    python -m benchmarks.stalls --size default --threads 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.checkpoints import SIZES, checkpoint
from voxr_ray.app import WARM_UP_S
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.model import Padding
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.record import StepRecord
from voxr_ray.engine.reply import ThreadReply
from voxr_ray.errors import Cancelled
from voxr_ray.messages import AudioChunk, Reference, Summary, SynthRequest, SynthResult
from voxr_ray.voxcpm2.loader import load_slot_model

WIDTH = 16
LEAD_IN_STEPS = 20
JOINER_PATCHES = 12


@dataclass(frozen=True)
class Stall:
    """One line of the table. Times in milliseconds."""

    work: str
    steps: int
    pieces: int
    median_step_ms: float
    worst_gap_ms: float
    worst_multiple: float


def clip(seconds: float, rate_hz: int, seed: int) -> np.ndarray:
    """Noise with the loudness of speech."""
    return (np.random.default_rng(seed).standard_normal(int(seconds * rate_hz)) * 3000).astype(np.int16)


def joiner(seed: int, patches: int = JOINER_PATCHES, **fields: object) -> SynthRequest:
    """A request of a fixed number of patches."""
    return SynthRequest(
        text=f"Newcomer {seed} says a few words.", seed=seed, min_len=patches, max_len=patches, retry_badcase=False,
        **fields,
    )  # fmt: skip


class Bench:
    """An engine, and a stream that runs while work arrives."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.rate_hz = engine.spec.input_sample_rate_hz
        # Made beforehand: drawing a minute of noise would take the interpreter away from the engine.
        self.recordings = [Reference.of_clip(clip(60, self.rate_hz, seed), self.rate_hz) for seed in range(3)]

    def watch(self, work: str, submit: Callable[[], list[ThreadReply]]) -> Stall:
        """Start the stream, submit the work, and read the record of the steps until the work is done."""
        stream: ThreadReply[Summary] = ThreadReply()
        observer = SynthRequest(
            text="The stream that everybody else may disturb. " * 12, seed=1, min_len=3000, max_len=3000,
            retry_badcase_ratio_threshold=100.0,
        )  # fmt: skip
        self.engine.submit(observer, stream, stream=True)
        chunks = iter(stream)
        for _ in range(LEAD_IN_STEPS):
            next(chunks)
        reader = threading.Thread(target=_read, args=(chunks,))
        reader.start()
        first = self.engine.record.steps()[-1].started_s
        for reply in submit():
            reply.result()
        steps = [step for step in self.engine.record.steps() if step.started_s >= first]
        stream.cancel()
        reader.join()
        return stall(work, steps)

    def encodes(self) -> list[ThreadReply]:
        """Two recordings of a minute to encode."""
        replies: list[ThreadReply] = []
        for recording in self.recordings[1:]:
            reply: ThreadReply[np.ndarray] = ThreadReply()
            self.engine.encode(recording, Padding.RIGHT, reply)
            replies.append(reply)
        return replies

    def long_reference(self) -> list[ThreadReply]:
        """A request with a reference of a minute that nobody has seen."""
        return [self.submit(joiner(1, reference=self.recordings[0]))]

    def long_prefix(self) -> list[ThreadReply]:
        """A text of two thousand tokens."""
        return [self.submit(joiner(2).model_copy(update={"text": "word " * 400}))]

    def long_answer(self) -> list[ThreadReply]:
        """A buffered answer of 300 patches."""
        return [self.submit(joiner(3, patches=300, retry_badcase_ratio_threshold=100.0))]

    def joiners(self) -> list[ThreadReply]:
        """Fifteen newcomers at once."""
        return [self.submit(joiner(seed)) for seed in range(WIDTH - 1)]

    def submit(self, request: SynthRequest) -> ThreadReply[SynthResult]:
        """Submit a buffered request."""
        reply: ThreadReply[SynthResult] = ThreadReply()
        self.engine.submit(request, reply, stream=False)
        return reply


def stall(work: str, steps: list[StepRecord]) -> Stall:
    """The worst gap of a run, each gap compared with the median step of its own width."""
    by_width: dict[int, list[float]] = {}
    for step in steps:
        by_width.setdefault(step.width, []).append(step.step_s + step.decode_s)
    medians = {width: statistics.median(times) for width, times in by_width.items()}
    gaps = [
        (after.started_s - before.started_s, medians[max(before.width, after.width)])
        for before, after in pairwise(steps)
    ]
    worst, median = max(gaps, key=lambda gap: gap[0] / gap[1])
    return Stall(work, len(steps), sum(s.pieces for s in steps), median * 1e3, worst * 1e3, worst / median)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how long a running stream waits for others' work.")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pieces-per-cycle", type=int, default=EngineOptions().pieces_per_cycle)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each; the median of their worst gaps counts")
    parser.add_argument("--json", type=Path, help="also write the table here")
    arguments = parser.parse_args()
    path = str(checkpoint(arguments.size))
    options = EngineOptions(
        max_batch=WIDTH,
        stream_chunk_patches=1,
        first_chunk_patches=1,
        pieces_per_cycle=arguments.pieces_per_cycle,
        reference_cache_bytes=0,
        record_steps=100_000,
    )
    with Engine(
        lambda: load_slot_model(
            path, device="cpu", dtype=arguments.dtype, threads=arguments.threads, warm_up_s=WARM_UP_S
        ),
        options,
    ) as engine:
        bench = Bench(engine)
        scenarios = {
            "two encodes of 60 s": bench.encodes,
            "a request with 60 s of reference": bench.long_reference,
            "a prefix of 2,000 tokens": bench.long_prefix,
            "a buffered answer of 300 patches": bench.long_answer,
            "fifteen newcomers at once": bench.joiners,
        }
        lines = []
        for work, submit in scenarios.items():
            rounds = sorted((bench.watch(work, submit) for _ in range(arguments.rounds)), key=_multiple)
            lines.append(rounds[len(rounds) // 2])
    print(f"{arguments.size}, {arguments.dtype}, {arguments.threads} thread(s)\n")
    print("| while there arrives | steps | pieces | median step, ms | worst gap, ms | multiple |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| {line.work} | {line.steps} | {line.pieces} | {line.median_step_ms:.1f} | {line.worst_gap_ms:.1f} "
            f"| {line.worst_multiple:.1f} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n", encoding="utf-8")


def _read(chunks: Iterator[AudioChunk]) -> None:
    with contextlib.suppress(Cancelled):
        deque(chunks, maxlen=0)


def _multiple(line: Stall) -> float:
    return line.worst_multiple


if __name__ == "__main__":
    main()
