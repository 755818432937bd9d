"""Captured steps of the golden checkpoint: the bytes of those that run kernel by kernel, in every mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fakes.capture import Kept, captures
from tests.parity.conftest import load_case
from tests.rendering import seat
from voxr_ray.messages import Sampler
from voxr_ray.voxcpm2.graphs import GraphOptions
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel
from voxr_ray.voxcpm2.tokenizer import TextTokenizer

STEPS = 24
SAMPLER = Sampler(2.0, 5)
NAMES = ("zero_shot_a", "reference", "continuation", "combined")


def together(model: VoxCPM2SlotModel, reference_data: Path, every: int) -> list[bytes]:
    """One request of each mode at scattered slots; some leave on the way, and their slots are taken again.

    ``every``: Steps from one decode to the next.
    """
    model.open(8, 512)
    cases = [load_case(reference_data / "cases", name) for name in NAMES]
    seated = dict(zip((0, 2, 3, 6), cases, strict=True))
    for slot, case in seated.items():
        seat(model, slot, case.request, case.seed)
    drawn: list[bytes] = []
    for index in range(STEPS):
        if index == STEPS // 3:
            model.release(6)
            del seated[6]
        if index == STEPS // 2:
            seat(model, 1, cases[1].request, 7)
            seated[1] = cases[1]
        drawn.append(model.step(4 if 6 not in seated else 8, SAMPLER).tobytes())
        if index % every == every - 1:  # with two, patches wait for their decode while the next step runs
            drawn += [np.ascontiguousarray(samples).tobytes() for samples in model.decode(sorted(seated))]
    for slot in seated:
        model.release(slot)
    return drawn


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_steps_give_the_bytes_of_eager_ones(reference_data: Path, dtype: str, every: int) -> None:
    eager = load_slot_model(str(reference_data / "tiny"), device="cpu", dtype=dtype)
    capture = Kept()
    captured = VoxCPM2SlotModel(
        eager._network,
        TextTokenizer(reference_data / "tiny" / "tokenizer.json"),
        graphs=GraphOptions(captures(capture), inference_timesteps=SAMPLER.inference_timesteps),
    )
    assert together(captured, reference_data, every) == together(eager, reference_data, every)
    decodes = STEPS if every == 1 else 0  # of one patch at a time
    assert capture.replayed == 2 * STEPS + decodes, "the warm-up had every shape"
