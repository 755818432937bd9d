"""What the engine knows of a model: the :class:`SlotModel` protocol and the values it exchanges.

The engine never sees a tensor. A model owns one *lane* per slot (caches, positions, conditions, noise, decoder
state) and the engine drives it by slot number. Long work is handed out as :data:`Work`, a generator that yields
between bounded pieces, so that the loop can put a step of the running rows between two of them. Where a piece ends
is a fixed function of the request: bytes never depend on load.

Only the owner thread calls a model, with one exception: :meth:`SlotModel.plan` is pure and may run on any thread.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from voxr_ray.messages import Sampler, SynthRequest

T = TypeVar("T")

Work: TypeAlias = Generator[None, None, T]
"""Work in bounded pieces: each ``next`` does one piece, the return value is the result, ``close`` abandons it."""


class Padding(StrEnum):
    """Where a recording is filled up to whole patches."""

    LEFT = "left"
    """Prompts: their last patch must end where the continuation begins."""
    RIGHT = "right"
    """References."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts of a loaded model.

    Attributes:
        sample_rate_hz: Rate of the audio it makes.
        input_sample_rate_hz: Rate of the recordings it takes.
        samples_per_patch: Output samples of one patch.
        input_samples_per_patch: Input samples that encode to one patch.
        patch_size: Latent frames in a patch.
        feat_dim: Numbers in a latent frame.
        max_positions: Sequence positions the model can represent (the length of its rope table).
    """

    sample_rate_hz: int
    input_sample_rate_hz: int
    samples_per_patch: int
    input_samples_per_patch: int
    patch_size: int
    feat_dim: int
    max_positions: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request will take, known at submission.

    Attributes:
        token_ids: Tokens of prompt text and target text together, without the audio-start token.
        text_tokens: Tokens of the target text alone.
        seq_len: Positions the prefill fills.
    """

    token_ids: tuple[int, ...]
    text_tokens: int
    seq_len: int


class SlotModel(Protocol):
    """A model that steps many slots at once.

    A failure of :meth:`open` or :meth:`step` is fatal to the engine. Any other method may fail for one job, and
    must then leave every lane as it was.
    """

    @property
    def spec(self) -> ModelSpec:
        """Facts of the model."""
        ...

    def plan(self, request: SynthRequest) -> Plan:
        """Tokenize the request and count its positions. Pure; any thread.

        Raises:
            InvalidRequest: The text has no token.
        """
        ...

    def open(self, width: int, capacity: int) -> None:
        """Prepare for at most ``width`` slots of ``capacity`` positions. Allocates one lane; :meth:`admit` widens."""
        ...

    def encode(self, clip: np.ndarray, padding: Padding) -> Work[np.ndarray]:
        """Encode int16 mono ``clip`` ``(samples,)``, at the input rate: float32 ``(patches, patch_size, feat_dim)``."""
        ...

    def prefill(self, plan: Plan, reference: np.ndarray | None, prompt: np.ndarray | None) -> Work[Any]:
        """Run the prefix of one request by itself, in a handoff cache of exactly ``plan.seq_len`` positions.

        Args:
            plan: The request's plan.
            reference: Features float32 ``(patches, patch_size, feat_dim)`` of the reference, if any.
            prompt: Features of the prompt, if any.

        Returns:
            A handoff for :meth:`admit`, opaque to the engine.
        """
        ...

    def admit(self, slot: int, handoff: Any, seed: int) -> None:
        """Seat a prefilled request in the free lane ``slot``; noise is drawn from a generator seeded with ``seed``."""
        ...

    def step(self, width: int, sampler: Sampler) -> np.ndarray:
        """Draw the next patch of every seated lane below ``width``.

        Returns:
            bool ``(width,)``: whether the stop head won for the patch just drawn. Meaningless at free lanes.
        """
        ...

    def decode(self, slots: Sequence[int]) -> list[np.ndarray]:
        """Decode the patches drawn since the last call for each of ``slots``: float32 ``(samples,)`` each.

        Every patch is decoded once, behind the state that the patches before it left. On failure no lane has moved.
        """
        ...

    def release(self, slot: int) -> None:
        """Empty a lane: first-patch condition, decode context, decoder state and noise go; nothing is inherited."""
        ...
