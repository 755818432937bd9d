"""Captured steps of the golden checkpoint: the bytes of those that run kernel by kernel, in every mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fakes.capture import Kept
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


def together(model: VoxCPM2SlotModel, reference_data: Path) -> list[bytes]:
    """One request of each mode at scattered slots; some leave on the way, and their slots are taken again."""
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
        if index % 2:  # patches wait for their decode while the next step runs
            drawn += [np.ascontiguousarray(samples).tobytes() for samples in model.decode(sorted(seated))]
    for slot in seated:
        model.release(slot)
    return drawn


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_steps_give_the_bytes_of_eager_ones(reference_data: Path, dtype: str) -> None:
    eager = load_slot_model(str(reference_data / "tiny"), device="cpu", dtype=dtype)
    capture = Kept()
    captured = VoxCPM2SlotModel(
        eager._network,
        TextTokenizer(reference_data / "tiny" / "tokenizer.json"),
        graphs=GraphOptions(capture, inference_timesteps=SAMPLER.inference_timesteps),
    )
    assert together(captured, reference_data) == together(eager, reference_data)
    assert capture.replayed == STEPS, "the warm-up had every shape"
