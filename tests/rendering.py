"""Driving a :class:`SlotModel` by hand: one request in one lane, without the engine."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from voxr_ray.engine.model import Padding, SlotModel
from voxr_ray.messages import Recording, SynthRequest

T = TypeVar("T")


def finish(work: Generator[None, None, T]) -> T:
    """Run pieces of work to their end and give the result."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Take:
    """One take: audio of each patch, and where the stop head won."""

    chunks: list[np.ndarray]
    stops: list[bool]

    @property
    def samples(self) -> np.ndarray:
        return np.concatenate(self.chunks)


def features(model: SlotModel, recording: Recording | None, padding: Padding) -> np.ndarray | None:
    """What the engine would hand to the prefill."""
    if recording is None:
        return None
    return recording.features if recording.clip is None else finish(model.encode(recording.clip, padding))


def seat(model: SlotModel, slot: int, request: SynthRequest, seed: int) -> int:
    """Prefill and admit a request; gives its budget in patches."""
    plan = model.plan(request)
    reference = features(model, request.reference, Padding.RIGHT)
    prompt = features(model, request.prompt, Padding.LEFT)
    model.admit(slot, finish(model.prefill(plan, reference, prompt)), seed)
    return min(int(plan.text_tokens * request.retry_badcase_ratio_threshold + 10), request.max_len)


def render(model: SlotModel, request: SynthRequest, seed: int, *, slot: int = 0) -> Take:
    """Render one request alone, decoding patch by patch."""
    budget = seat(model, slot, request, seed)
    chunks: list[np.ndarray] = []
    stops: list[bool] = []
    for index in range(budget):
        stops.append(bool(model.step(slot + 1, request.sampler)[slot]))
        chunks.extend(model.decode([slot]))
        if stops[-1] and index > request.min_len:
            break
    model.release(slot)
    return Take(chunks, stops)
