"""Long texts with the embedded voice: where one part ends and the next begins there is nothing to be heard."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.rendering import render
from voxr_ray.engine.model import SlotModel
from voxr_ray.messages import StopReason, Summary, SynthRequest, SynthResult
from voxr_ray.serve.narration import Narrator, parts_of
from voxr_ray.voxcpm2.hub import resolve_checkpoint
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.settings import load_settings

TEXT = (
    "The train leaves at nine on Tuesday. The dog and the rabbit hurry early. I would like some tea and rice. "
    "We move to the kitchen today."
)
MOST = 40
"""Weight of a part; no sentence here is above it."""

WINDOW_S = 0.02


class OneLane:
    """Renders parts with a model alone."""

    def __init__(self, model: SlotModel) -> None:
        self.model = model

    async def render_one(self, request: SynthRequest) -> SynthResult:
        assert request.seed is not None
        take = render(self.model, request, request.seed)
        assert take.stops[-1], "a part that runs into its limit is not continued"
        rate_hz = self.model.spec.sample_rate_hz
        return SynthResult(take.samples, Summary(request.seed, 1, StopReason.STOP, len(take.chunks), 1, rate_hz))

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def level(samples: np.ndarray) -> float:
    return float(np.sqrt((samples.astype(np.float64) ** 2).mean()))


@pytest.fixture(scope="module")
def model() -> SlotModel:
    model = load_slot_model(str(resolve_checkpoint("default")), device="cpu")
    model.open(1, 1024)
    return model


async def test_joints_of_a_long_text_are_inaudible(model: SlotModel) -> None:
    own = load_settings(resolve_checkpoint("default")).defaults
    request = SynthRequest.model_validate({"text": TEXT, "seed": 1} | own.model_dump(exclude_none=True))
    renderer: Any = OneLane(model)  # nothing is streamed here
    narrator = Narrator(request, model.spec, renderer, patience_s=1)
    texts = parts_of(TEXT, MOST)
    assert len(texts) == 4
    parts = [(await narrator.render(text)).samples for text in texts]

    everything = np.concatenate(parts)
    loudness = level(everything)
    window = int(WINDOW_S * model.spec.sample_rate_hz)
    loud = np.array([level(piece) > 0.1 * loudness for piece in np.array_split(everything, len(everything) // window)])
    longest_pause = max(len(run) for run in "".join("x" if each else "." for each in loud).split("x"))
    for before, after in pairwise(parts):
        # No click: the sound has died away, and what follows begins from nothing.
        assert abs(before[-1] - after[0]) < 1e-3 * loudness
        assert level(before[-window:]) < 0.05 * loudness
        assert level(after[:window]) < 0.05 * loudness
        assert 0.7 < level(after) / level(before) < 1.4, "the next part is as loud"
    assert longest_pause * WINDOW_S < 0.7, "no hole where a part ends"
