"""The typed values that cross actors: requests, recordings, chunks and results.

All of them pickle, are small, and never change after construction. Audio is float32 in [-1, 1] on its way out and
int16 mono at the model's input rate on its way in: a by-value message between Serve actors must stay under 4 MiB,
and one minute of float32 at 16 kHz would already fill it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

SEED_MAX = 2**63 - 1
"""Largest seed a request may name."""

SEED_MODULUS = 2**32
"""Seeds are taken modulo this: the CPU generator that draws the noise reads 32 bits of its seed."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """What all rows of one batch share: the guidance and the number of Euler steps.

    Attributes:
        cfg_value: Classifier-free guidance scale.
        inference_timesteps: Euler steps of the flow-matching solver, at least 2.
    """

    cfg_value: float
    inference_timesteps: int


class StopReason(StrEnum):
    """Why a take ended."""

    STOP = "stop"
    """The model's stop head won."""
    LENGTH = "length"
    """The budget of patches was used up."""


def clip_digest(samples: np.ndarray, rate_hz: int) -> str:
    """Hex SHA-256 of a clip's rate and int16 ``samples`` ``(samples,)``: what it is known by in every cache."""
    return hashlib.sha256(f"{rate_hz}:".encode() + np.ascontiguousarray(samples, dtype="<i2").data).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recording as the engine takes it: samples still to be encoded, or features already encoded.

    Exactly one of ``clip`` and ``features`` is set.

    Attributes:
        digest: Hex SHA-256 of the clip's rate and samples: equal recordings have equal digests whatever file they
            came in.
        clip: int16 ``(samples,)``, mono, at the model's input rate; ``None`` once encoded.
        features: float32 ``(patches, patch_size, feat_dim)`` from the audio encoder; ``None`` while unencoded.
    """

    digest: str
    clip: np.ndarray | None = None
    features: np.ndarray | None = None

    def __post_init__(self) -> None:
        if (self.clip is None) == (self.features is None):
            raise ValueError("a recording holds either a clip or features")

    @classmethod
    def of_clip(cls, samples: np.ndarray, rate_hz: int) -> Self:
        """A recording of int16 mono ``samples`` ``(samples,)`` at ``rate_hz``, digest included."""
        samples = np.ascontiguousarray(samples, dtype=np.int16)
        return cls(digest=clip_digest(samples, rate_hz), clip=samples)


@dataclass(frozen=True, slots=True, eq=False)
class Reference(Recording):
    """A voice to speak with: its audio is never continued, only imitated."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt(Recording):
    """A clip to continue from.

    Attributes:
        text: What the clip says; the target text is spoken as its continuation.
    """

    text: str = field(kw_only=True)


class SynthRequest(BaseModel):
    """One utterance to render.

    The names of the parameters are upstream's. Construction checks types and ranges and raises pydantic's
    ``ValidationError``; limits that depend on the loaded model are checked at submission.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    text: Annotated[str, Field(min_length=1)]
    """Text to speak. White-space runs become one space before it is tokenized."""
    reference: Reference | None = None
    """Voice to imitate."""
    prompt: Prompt | None = None
    """Clip to continue from."""
    cfg_value: Annotated[float, Field(ge=0.0, le=10.0, allow_inf_nan=False)] = 2.0
    """Classifier-free guidance scale."""
    inference_timesteps: Annotated[StrictInt, Field(ge=2, le=100)] = 10
    """Euler steps a patch. One step would return the noise itself, so two is the least."""
    min_len: Annotated[StrictInt, Field(ge=0, le=100_000)] = 2
    """A stop counts only at a patch index above this, so the shortest take has ``min_len + 2`` patches."""
    max_len: Annotated[StrictInt, Field(ge=1, le=100_000)] = 2000
    """Most patches a take may have."""
    seed: Annotated[StrictInt, Field(ge=0, le=SEED_MAX)] | None = None
    """Seed of the noise, taken modulo 2^32. ``None`` draws one; the result names it."""
    retry_badcase: StrictBool = True
    """Render again when a take is suspiciously long. Buffered renders only."""
    retry_badcase_max_times: Annotated[StrictInt, Field(ge=1, le=10)] = 3
    """Most takes in all, the first included."""
    retry_badcase_ratio_threshold: Annotated[float, Field(gt=0.0, le=100.0, allow_inf_nan=False)] = 6.0
    """Patches per text token from which a take counts as bad; it also bounds the budget of every take."""
    normalize: StrictBool | Literal["en", "zh", "ja"] = False
    """Spell out numbers, dates, money and abbreviations first: true to tell the language from the script, or a
    language. A router does it, so requests that reach an engine have it off."""
    request_id: str = ""
    """Identifier that follows the request through logs."""

    @model_validator(mode="after")
    def _text_is_not_blank(self) -> Self:
        if not self.text.strip():
            raise ValueError("text is blank: give at least one character to speak")
        return self

    @property
    def sampler(self) -> Sampler:
        """The sampler this request needs its batch to run."""
        return Sampler(self.cfg_value, self.inference_timesteps)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a take once it has ended.

    Attributes:
        seed: Seed of the take that was kept, after the modulus.
        takes: Takes made, the kept one included.
        stop_reason: Why the kept take ended.
        patches: Patches of the kept take.
        text_tokens: Tokens of the target text.
        sample_rate_hz: Rate of the audio.
    """

    seed: int
    takes: int
    stop_reason: StopReason
    patches: int
    text_tokens: int
    sample_rate_hz: int


@dataclass(frozen=True, slots=True, eq=False)
class AudioChunk:
    """A run of consecutive samples of one answer. Chunks arrive in order and each holds whole patches.

    Attributes:
        samples: float32 ``(samples,)`` in [-1, 1].
        index: Number of this chunk, from 0.
        seed: Seed of the take, after the modulus.
        sample_rate_hz: Rate of the samples.
        summary: Set on the last chunk, and only there.
    """

    samples: np.ndarray
    index: int
    seed: int
    sample_rate_hz: int
    summary: Summary | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SynthResult:
    """A whole rendered utterance.

    Attributes:
        samples: float32 ``(samples,)`` in [-1, 1].
        summary: How it was made.
    """

    samples: np.ndarray
    summary: Summary

    @property
    def audio_seconds(self) -> float:
        """Length of the audio in seconds."""
        return len(self.samples) / self.summary.sample_rate_hz
