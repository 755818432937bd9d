"""Jobs: what submissions become inside the engine.

A job is made on the caller's thread and from then on belongs to the owner thread, but for its *place*: the caller may
withdraw a job up to the moment it takes a slot, so that step is decided under a lock.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from voxr_ray.engine.model import Padding, Plan
from voxr_ray.engine.reply import Reply
from voxr_ray.messages import SEED_MODULUS, Recording, Sampler, SynthRequest


class _State(Enum):
    WAITING = "waiting for a slot"
    PLACED = "has taken a slot"
    WITHDRAWN = "taken back by its caller"


class Place:
    """Whether a job still waits for a slot. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = _State.WAITING

    def take(self) -> bool:
        """Take a slot, unless the job was withdrawn. Owner thread."""
        return self._move(_State.PLACED)

    def withdraw(self) -> bool:
        """Give up the wait, unless a slot was taken. The caller's thread."""
        return self._move(_State.WITHDRAWN)

    @property
    def waiting(self) -> bool:
        """Whether neither has happened."""
        return self._state is _State.WAITING

    def _move(self, target: _State) -> bool:
        with self._lock:
            if self._state is _State.WAITING:
                self._state = target
            return self._state is target


@dataclass(frozen=True, slots=True, eq=False)
class RenderJob:
    """A request on its way to audio.

    Attributes:
        request: What the caller asked for.
        plan: Its tokens and positions.
        budget_patches: Most patches of one take.
        seed: Seed of this take, after the modulus.
        stream: Whether audio is delivered while it is made. Only buffered renders are ever taken again.
        reply: The caller's line. Shared by all takes.
        submitted_s: When it was submitted, on the engine's clock.
        sequence: Rank of its submission; unique in an engine.
        take: Number of this take, from 1.
        moved: Whether another engine had accepted it and was lost. It goes ahead of those who wait, and is never
            refused for want of room: its caller may be listening already.
        place: Whether it still waits.
    """

    request: SynthRequest
    plan: Plan
    budget_patches: int
    seed: int
    stream: bool
    reply: Reply[Any]
    submitted_s: float
    sequence: int
    take: int = 1
    moved: bool = False
    place: Place = field(default_factory=Place)

    @property
    def sampler(self) -> Sampler:
        """The sampler its batch must run."""
        return self.request.sampler

    @property
    def gone(self) -> bool:
        """Whether its caller has left."""
        return self.reply.cancelled

    def may_retake(self, patches: int) -> bool:
        """Whether a take of so many patches is bad and another attempt is left."""
        request = self.request
        if self.stream or not request.retry_badcase or self.take >= request.retry_badcase_max_times:
            return False
        return patches >= request.retry_badcase_ratio_threshold * self.plan.text_tokens

    def retried(self) -> RenderJob:
        """The next take: equal, but for the seed."""
        return replace(self, seed=(self.seed + 1) % SEED_MODULUS, take=self.take + 1)


@dataclass(frozen=True, slots=True, eq=False)
class EncodeJob:
    """A recording to be encoded for its caller. Takes no slot.

    Attributes:
        recording: What to encode.
        padding: Where it is filled up to whole patches.
        reply: The caller's line; its result is float32 ``(patches, patch_size, feat_dim)``.
        sequence: Rank of its submission; unique in an engine.
    """

    recording: Recording
    padding: Padding
    reply: Reply[np.ndarray]
    sequence: int

    @property
    def gone(self) -> bool:
        """Whether its caller has left."""
        return self.reply.cancelled


Job: TypeAlias = RenderJob | EncodeJob


def seed_of(request: SynthRequest) -> int:
    """The seed a request's first take is drawn with: its own after the modulus, or a fresh one."""
    return secrets.randbelow(SEED_MODULUS) if request.seed is None else request.seed % SEED_MODULUS


def budget_of(request: SynthRequest, plan: Plan) -> int:
    """Most patches of one take: what the target text can reasonably need, and never above ``max_len``."""
    return min(int(plan.text_tokens * request.retry_badcase_ratio_threshold + 10), request.max_len)
