"""B1, B2: equal request, equal seed, equal bytes, whoever else is in the batch.

Requests of every mode run through the real engine and the golden network in random company: joiners, leavers, retries,
streams and whole answers, at whatever slot is free, with one and two threads. Every survivor's bytes are compared with
the render of the same request alone. Lengths are forced past 100 patches, because the loop is chaotic and a shorter
take can hide a difference of one bit.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from voxr_ray.engine.engine import Engine
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.reply import ThreadReply
from voxr_ray.errors import Cancelled
from voxr_ray.messages import Prompt, Reference, SynthRequest, SynthResult
from voxr_ray.voxcpm2.loader import load_slot_model

# Two threads that share their cores with other work wait for each other at every operation.
pytestmark = pytest.mark.timeout(1200)

RATE_HZ = 16_000
PATCHES = int(os.environ.get("INVARIANCE_PATCHES", "100"))
SCHEDULES = int(os.environ.get("INVARIANCE_SCHEDULES", "2"))
WIDTH = 6


@pytest.fixture(scope="module")
def requests(reference_data: Path) -> list[SynthRequest]:
    """Two requests of each mode, one of them with a retry that its length provokes."""
    folder = reference_data / "cases"
    reference = Reference.of_clip(soundfile.read(folder / "ref_16k.wav", dtype="int16")[0], RATE_HZ)
    clip = soundfile.read(folder / "prompt_16k.wav", dtype="int16")[0]
    prompt = Prompt(digest=Reference.of_clip(clip, RATE_HZ).digest, clip=clip, text="A reference voice")
    made = []
    for index in range(8):
        fields: dict[str, object] = {}
        if index % 4 in (1, 3):
            fields["reference"] = reference
        if index % 4 in (2, 3):
            fields["prompt"] = prompt
        patches = PATCHES + 7 * index
        made.append(
            SynthRequest(
                text=f" Take number {index}, spoken at length so that its budget is wide." * 2,
                seed=100 + index,
                min_len=patches,
                max_len=patches,
                inference_timesteps=4,
                retry_badcase=index == 4,
                retry_badcase_max_times=2,
                retry_badcase_ratio_threshold=6.0,
                **fields,
            )
        )
    return made


@pytest.fixture(params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def threads() -> Iterator[None]:
    """Leave the thread count as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def engine(reference_data: Path, dtype: str, threads: int, width: int) -> Engine:
    path = str(reference_data / "tiny")
    options = EngineOptions(max_batch=width, continuous_capacity=512, max_queue=64)
    return Engine(lambda: load_slot_model(path, device="cpu", dtype=dtype, threads=threads), options)


def solo(reference_data: Path, dtype: str, requests: list[SynthRequest]) -> list[bytes]:
    """Each request alone in an engine of one slot, on one thread."""
    renders = []
    with engine(reference_data, dtype, 1, 1) as alone:
        for request in requests:
            reply: ThreadReply[SynthResult] = ThreadReply()
            alone.submit(request, reply, stream=False)
            renders.append(reply.result(timeout_s=200).samples.tobytes())
    return renders


def consume(running: Engine, request: SynthRequest, *, stream: bool, leave_after: int | None) -> bytes | None:
    """Render through a shared engine; ``None`` for a caller who left."""
    reply: ThreadReply = ThreadReply()
    running.submit(request, reply, stream=stream)
    if not stream:
        if leave_after is not None:
            reply.cancel()
        try:
            return bytes(reply.result(timeout_s=200).samples.tobytes())
        except Cancelled:
            return None
    chunks: list[np.ndarray] = []
    for chunk in reply:
        chunks.append(chunk.samples)
        if leave_after is not None and len(chunks) > leave_after:
            reply.cancel()
            return None
    return np.concatenate(chunks).tobytes()


@pytest.mark.usefixtures("threads")
def test_every_survivor_equals_its_solo_render(reference_data: Path, requests: list[SynthRequest], dtype: str) -> None:
    expected = solo(reference_data, dtype, requests)
    for schedule in range(SCHEDULES):
        rng = random.Random(f"{dtype} {schedule}")
        order = list(range(len(requests))) + rng.choices(range(len(requests)), k=4)
        rng.shuffle(order)
        plans = [
            (index, rng.random() < 0.5 and not requests[index].retry_badcase, rng.choice([None, None, None, 0, 3]))
            for index in order
        ]
        results: list[tuple[int, bytes | None]] = []
        with engine(reference_data, dtype, 1 + schedule % 2, WIDTH) as shared:
            waiting = iter(plans)

            def client(shared: Engine = shared, waiting: Iterator = waiting, results: list = results) -> None:
                for index, stream, leave_after in waiting:
                    results.append((index, consume(shared, requests[index], stream=stream, leave_after=leave_after)))

            clients = [threading.Thread(target=client) for _ in range(WIDTH + 2)]
            for thread in clients:
                thread.start()
            for thread in clients:
                thread.join()
            steps = shared.record.steps()
        assert len(results) == len(plans)
        assert any(len(step.slots) > 2 for step in steps), "nobody ever had company"
        survivors = [(index, audio) for index, audio in results if audio is not None]
        assert survivors
        for index, audio in survivors:
            assert audio == expected[index], f"request {index} differs from its solo render in schedule {schedule}"


@pytest.mark.usefixtures("threads")
def test_golden_audio_does_not_depend_on_the_number_of_threads(
    reference_data: Path, requests: list[SynthRequest]
) -> None:
    renders = []
    for count in (1, 2):
        with engine(reference_data, "float32", count, 1) as alone:
            reply: ThreadReply[SynthResult] = ThreadReply()
            alone.submit(requests[3], reply, stream=False)
            renders.append(reply.result(timeout_s=200).samples.tobytes())
    assert renders[0] == renders[1]
