"""The right answer for a request: its render by a fresh model, alone, with no engine in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from tests.fakes.slot_model import FakeSlotModel, make_fake_model
from voxr_ray.engine.model import Padding, Plan
from voxr_ray.messages import SEED_MODULUS, Recording, StopReason, Summary, SynthRequest, SynthResult


def render_alone(request: SynthRequest, *, stream: bool = False, **model_arguments: Any) -> SynthResult:
    """Render ``request`` (which names its seed) the plain way, retries included unless it streams."""
    if request.seed is None:
        raise ValueError("a solo render needs a seed to be comparable")
    takes = request.retry_badcase_max_times if request.retry_badcase and not stream else 1
    seed = request.seed % SEED_MODULUS
    for take in range(1, takes + 1):
        model = make_fake_model(**model_arguments)
        plan = model.plan(request)
        samples, patches, reason = _take(model, plan, request, seed)
        if patches < request.retry_badcase_ratio_threshold * plan.text_tokens or take == takes:
            break
        seed = (seed + 1) % SEED_MODULUS
    summary = Summary(seed, take, reason, patches, plan.text_tokens, model.spec.sample_rate_hz)
    return SynthResult(samples, summary)


def _take(model: FakeSlotModel, plan: Plan, request: SynthRequest, seed: int) -> tuple[np.ndarray, int, StopReason]:
    model.open(1, 1 << 30)
    reference = _features(model, request.reference, Padding.RIGHT)
    prompt = _features(model, request.prompt, Padding.LEFT)
    model.admit(0, _finish(model.prefill(plan, reference, prompt)), seed)
    budget = min(int(plan.text_tokens * request.retry_badcase_ratio_threshold + 10), request.max_len)
    audio: list[np.ndarray] = []
    for index in range(budget):
        stop = bool(model.step(1, request.sampler)[0])
        audio += model.decode([0])
        if stop and index > request.min_len:
            return np.concatenate(audio), index + 1, StopReason.STOP
    return np.concatenate(audio), budget, StopReason.LENGTH


def _features(model: FakeSlotModel, recording: Recording | None, padding: Padding) -> np.ndarray | None:
    if recording is None:
        return None
    if recording.clip is None:
        return recording.features
    features: np.ndarray = _finish(model.encode(recording.clip, padding))
    return features


def _finish(work: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
