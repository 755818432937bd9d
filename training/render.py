"""Rendering many requests at once through the model that is served, without engine and server."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from voxr_ray.engine.model import Padding, SlotModel
from voxr_ray.messages import Recording, SynthRequest

T = TypeVar("T")

WIDTH = 8
CAPACITY = 512


@dataclass(slots=True)
class Rendering:
    """One take.

    Attributes:
        samples: float32 audio.
        stopped: Whether the stop head ended it; otherwise the budget did.
    """

    samples: np.ndarray
    stopped: bool


@dataclass(slots=True)
class _Row:
    job: int
    budget: int
    chunks: list[np.ndarray]


def _finish(work: Generator[None, None, T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def _features(model: SlotModel, recording: Recording | None, padding: Padding) -> np.ndarray | None:
    if recording is None:
        return None
    return recording.features if recording.clip is None else _finish(model.encode(recording.clip, padding))


def render_all(model: SlotModel, requests: Sequence[SynthRequest]) -> list[Rendering]:
    """Render requests that share a sampler, each with its own seed, in batches; the model must not be open yet."""
    model.open(WIDTH, CAPACITY)
    waiting = deque(range(len(requests)))
    rows: dict[int, _Row] = {}
    done: dict[int, Rendering] = {}
    with tqdm(total=len(requests), desc="render", unit="take", leave=False) as bar:
        while waiting or rows:
            for slot in sorted(set(range(WIDTH)) - set(rows)):
                if not waiting:
                    break
                job = waiting.popleft()
                request = requests[job]
                plan = model.plan(request)
                reference = _features(model, request.reference, Padding.RIGHT)
                prompt = _features(model, request.prompt, Padding.LEFT)
                model.admit(slot, _finish(model.prefill(plan, reference, prompt)), request.seed or 0)
                budget = min(int(plan.text_tokens * request.retry_badcase_ratio_threshold + 10), request.max_len)
                rows[slot] = _Row(job, budget, [])
            stops = model.step(max(rows) + 1, requests[0].sampler)
            seated = sorted(rows)
            for slot, audio in zip(seated, model.decode(seated), strict=True):
                row = rows[slot]
                row.chunks.append(audio)
                index = len(row.chunks) - 1
                stopped = bool(stops[slot]) and index > requests[row.job].min_len
                if stopped or len(row.chunks) >= row.budget:
                    done[row.job] = Rendering(np.concatenate(row.chunks), stopped)
                    model.release(slot)
                    del rows[slot]
                    bar.update()
    return [done[job] for job in range(len(requests))]
