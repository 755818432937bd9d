"""Random schedules of the loop on the golden network, cycle by cycle and repeatable by their number.

Requests of every mode arrive, leave, stream or wait, are taken again, meet strangers' samplers and encodes, in float32
and bfloat16, on one and two threads, at random widths, piece counts and chunk sizes. Every survivor must have the bytes
of its render alone, and nothing may be left. ``EQUALITY_SCHEDULES=500 pytest -m ""`` runs as many of each kind,
from number ``EQUALITY_FIRST`` on; all but the first are marked ``slow``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tests.fakes.driver import Driver, Probe
from tests.rendering import finish
from voxr_ray.engine.loop import Turn
from voxr_ray.engine.model import Padding
from voxr_ray.errors import Cancelled, Overloaded
from voxr_ray.messages import Prompt, Recording, Reference, SynthRequest
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel

# Two threads that share their cores with other work wait for each other at every operation.
pytestmark = pytest.mark.timeout(1200)

RATE_HZ = 16_000
COUNT = int(os.environ.get("EQUALITY_SCHEDULES", "2"))
FIRST = int(os.environ.get("EQUALITY_FIRST", "0"))
ARRIVALS = 10


@pytest.fixture(scope="module")
def recordings(reference_data: Path) -> list[np.ndarray]:
    folder = reference_data / "cases"
    return [soundfile.read(folder / name, dtype="int16")[0] for name in ("ref_16k.wav", "prompt_16k.wav")]


def pool(recordings: list[np.ndarray]) -> list[SynthRequest]:
    """Requests to draw from: every mode, long and short, retried, two samplers."""
    voice, clip = (Recording.of_clip(samples, RATE_HZ) for samples in recordings)
    made = []
    for index in range(16):
        fields: dict[str, object] = {"max_len": 80}
        if index % 4 in (1, 3):
            fields["reference"] = Reference(digest=voice.digest, clip=voice.clip)
        if index % 4 in (2, 3):
            fields["prompt"] = Prompt(digest=clip.digest, clip=clip.clip, text="A reference voice")
        if index < 8:  # past the point where a difference of one bit would have become another take
            patches = 100 + 5 * index
            fields |= {"min_len": patches, "max_len": patches, "retry_badcase": False}
        elif index < 12:  # ends by itself; long takes are bad, and there always are some
            fields |= {"retry_badcase_ratio_threshold": 0.2, "retry_badcase_max_times": 3}
        text = f" Request {index} of the pool, with words enough for a wide budget. " * (1 + index % 2)
        made.append(
            SynthRequest(
                text=text, seed=2**32 - 4 + index, cfg_value=1.5 if index in (5, 14) else 2.0,
                inference_timesteps=3, **fields,
            )
        )  # fmt: skip
    return made


class Alone:
    """Renders without company, made once."""

    def __init__(self, model: VoxCPM2SlotModel) -> None:
        self._model = model
        self._known: dict[tuple[int, bool], bytes] = {}

    def render(self, index: int, request: SynthRequest, *, stream: bool) -> bytes:
        key = (index, stream)
        if key not in self._known:
            torch.set_num_threads(1)
            driver = Driver(self._model, max_batch=1, continuous_capacity=512)  # type: ignore[arg-type]
            probe = driver.submit(request, stream=stream)
            driver.run(lambda: probe.ended)
            got = probe.streamed if stream else probe.result
            self._known[key] = got.samples.tobytes()
        return self._known[key]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def models(request: pytest.FixtureRequest, reference_data: Path) -> Iterator[tuple[VoxCPM2SlotModel, Alone]]:
    """A model for company, and solo renders of another instance."""
    threads = torch.get_num_threads()
    path = str(reference_data / "tiny")
    shared, alone = (load_slot_model(path, device="cpu", dtype=request.param) for _ in range(2))
    yield shared, Alone(alone)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "number", [FIRST, *(pytest.param(number, marks=pytest.mark.slow) for number in range(FIRST + 1, FIRST + COUNT))]
)
def test_every_survivor_of_a_schedule_equals_its_solo_render(
    models: tuple[VoxCPM2SlotModel, Alone], recordings: list[np.ndarray], number: int
) -> None:
    """B2 and rule 14."""
    model, alone = models
    rng = random.Random(number)
    torch.set_num_threads(rng.choice([1, 2]))
    first = rng.choice([1, 2])
    driver = Driver(
        model,  # type: ignore[arg-type]
        max_batch=rng.choice([2, 3, 5, 8]),
        max_queue=rng.choice([2, 16]),
        continuous_capacity=512,
        pieces_per_cycle=rng.choice([1, 2, 4]),
        first_chunk_patches=first,
        stream_chunk_patches=first + rng.choice([0, 1, 6]),
        reference_cache_bytes=rng.choice([0, 1 << 20]),
    )
    requests = pool(recordings)
    renders: list[tuple[int, Probe, bool]] = []
    encodes: list[tuple[int, Padding, Probe]] = []
    arriving = rng.choices(range(len(requests)), k=ARRIVALS)
    company = 0
    while arriving or company < 2:
        arriving = arriving or rng.choices(range(len(requests)), k=ARRIVALS)
        act = rng.random()
        if act < 0.4:
            index, stream = arriving.pop(), rng.random() < 0.5
            try:
                renders.append((index, driver.submit(requests[index], stream=stream), stream))
            except Overloaded:
                arriving.append(index)
        elif act < 0.5:
            which, padding = rng.randrange(2), rng.choice(list(Padding))
            encodes.append((which, padding, driver.encode(Recording.of_clip(recordings[which], RATE_HZ), padding)))
        elif act < 0.56 and len(renders) > 1:
            rng.choice(renders[:-1])[1].cancel()
        driver.cycle(rng.randrange(1, 20))
        company = max(company, len(driver.rows))
    driver.inbox.close()
    assert driver.run() is Turn.OVER

    assert not model.lanes.seats
    assert driver.loop.batch.slots.empty
    survivors = 0
    for index, probe, stream in renders:
        if isinstance(probe.error, Cancelled):
            continue
        got = probe.streamed if stream else probe.result
        assert got.samples.tobytes() == alone.render(index, requests[index], stream=stream), f"request {index}"
        survivors += 1
    assert survivors
    torch.set_num_threads(1)
    for which, padding, probe in encodes:
        assert np.array_equal(probe.result, finish(model.encode(recordings[which], padding)))
