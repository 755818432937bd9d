"""Long texts: rendered part by part, each continuing the one before, so that the voice stays the same to the end.

A part is an ordinary request of its own. What ties it to the others:

- the *reference* of the request; if it has none, its prompt's clip, or else the beginning of the first part, so that
  even a voice the model made up itself is kept;
- the *prompt*: the whole of the part before it, with its text. Clip and transcript must match, or the model repeats
  and swallows words, so a part is carried over as a whole or not at all: not if it is longer than
  :data:`CARRIED_PATCHES`, and not if it ran into its limit instead of ending by itself. Then the next part begins as
  the first one did;
- the *seed*: part ``n`` (from 0) has the request's seed plus ``1000 * n``.

Parts are rendered one after another, so a long text takes one slot and waits its turn for each part. Full queues end
a request only before its first part: later ones wait for room. Runs on a router's event loop; resampling goes to
threads.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from voxr_ray.audio import clip_of
from voxr_ray.engine.model import ModelSpec
from voxr_ray.errors import EngineError, Overloaded, VoxrError
from voxr_ray.messages import (
    SEED_MODULUS,
    AudioChunk,
    Prompt,
    Recording,
    Reference,
    StopReason,
    Summary,
    SynthRequest,
    SynthResult,
)
from voxr_ray.serve.split import split
from voxr_ray.serve.text import compose, is_speakable, style_of

CARRIED_PATCHES = 125
"""Longest part that the next one continues from: twenty seconds of VoxCPM2's patches."""

_ANCHOR_PATCHES = 62
"""Patches of the first part that stand in for a missing reference."""

_SEED_STRIDE = 1000
_CHECKED_AT_ONCE = 100


class Renderer(Protocol):
    """What renders single parts."""

    async def render_one(self, request: SynthRequest) -> SynthResult:
        """Render one request to the end."""

    def stream_one(self, request: SynthRequest) -> AsyncGenerator[AudioChunk, None]:
        """Render one request and pass its chunks on."""

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function off the event loop."""


def parts_of(text: str, most: int) -> list[str]:
    """The parts a text is rendered in, all of them speakable; none if it is short and rendered as it is.

    Args:
        text: The text of a request; the style it may begin with is no part.
        most: Largest weight of a part.
    """
    parts = split(style_of(text)[1], most)
    return [compose(part, None) for part in parts if is_speakable(part)] if len(parts) > 1 else []


class Narrator:
    """Renders one part after another.

    Args:
        request: What all parts share. Of its text only the style is used: for the first part, and for each that
            begins anew, since a continuation takes its manner from what it continues. An unset seed is drawn.
        spec: Facts of the model.
        renderer: Renders the parts.
        patience_s: Longest time that parts after the first wait for room.
    """

    def __init__(self, request: SynthRequest, spec: ModelSpec, renderer: Renderer, patience_s: float) -> None:
        self.seed = (secrets.randbelow(SEED_MODULUS) if request.seed is None else request.seed) % SEED_MODULUS
        self._shared = request
        self._style = style_of(request.text)[0]
        self._spec = spec
        self._renderer = renderer
        self._patience_s = patience_s
        self._begun = 0
        self._prompt = request.prompt
        self._reference = request.reference

    @property
    def request(self) -> SynthRequest:
        """Voice and parameters of every part."""
        return self._shared

    def break_off(self) -> None:
        """Let the next part begin anew, with the same voice."""
        self._prompt = self._shared.prompt

    async def render(self, text: str) -> SynthResult:
        """Render the next part to the end."""
        request = self._next(text)
        until = None
        while True:
            try:
                result = await self._renderer.render_one(request)
                break
            except VoxrError as error:
                until = await self._wait(error, until)
        await self._follow(text, result.samples, result.summary)
        return result

    async def stream(self, text: str) -> AsyncGenerator[AudioChunk, None]:
        """Render the next part and yield its audio while it is made."""
        request = self._next(text)
        until = None
        chunks: list[AudioChunk] = []
        while not chunks:
            try:
                async with aclosing(self._renderer.stream_one(request)) as source:
                    async for chunk in source:
                        chunks.append(chunk)
                        yield chunk
            except VoxrError as error:
                if chunks:
                    raise
                until = await self._wait(error, until)
        samples = np.concatenate([chunk.samples for chunk in chunks])
        summary = chunks[-1].summary
        if len(samples) == 0 or summary is None:
            raise EngineError("the model made no audio for a part of this text")
        await self._follow(text, samples, summary)

    def _next(self, text: str) -> SynthRequest:
        fresh = self._prompt is self._shared.prompt
        part, self._begun = self._begun, self._begun + 1
        changes: dict[str, Any] = {
            "text": (self._style if fresh else "") + text.strip(),
            "seed": (self.seed + _SEED_STRIDE * part) % SEED_MODULUS,
            "reference": self._reference,
            "prompt": self._prompt,
        }
        return self._shared.model_copy(update=changes)

    async def _wait(self, error: VoxrError, until: float | None) -> float:
        """Wait before another attempt at a part; raises the error where that makes no sense."""
        now = asyncio.get_running_loop().time()
        until = now + self._patience_s if until is None else until
        # Only for room: lost replicas have been retried already, within bounds of their own.
        if self._begun == 1 or not isinstance(error, Overloaded) or error.retry_after_s is None:
            raise error
        if now + error.retry_after_s > until:
            raise error
        await asyncio.sleep(error.retry_after_s)
        return until

    async def _follow(self, text: str, samples: np.ndarray, summary: Summary) -> None:
        """Note what the next part begins from."""
        self.break_off()
        if summary.stop_reason is not StopReason.STOP:
            return
        if self._reference is None:
            own = self._shared.prompt
            if own is not None and own.clip is not None:
                self._reference = Reference(own.digest, own.clip)
            else:
                clip = await self._clip(samples[: _ANCHOR_PATCHES * self._spec.samples_per_patch])
                self._reference = Reference(clip.digest, clip.clip)
        if len(samples) <= CARRIED_PATCHES * self._spec.samples_per_patch:
            clip = await self._clip(samples)
            self._prompt = Prompt(clip.digest, clip.clip, text=text.strip() + (" " if text[-1:].isspace() else ""))

    async def _clip(self, samples: np.ndarray) -> Recording:
        def make() -> Recording:
            rate_hz = self._spec.input_sample_rate_hz
            return Recording.of_clip(clip_of(samples, self._spec.sample_rate_hz, rate_hz), rate_hz)

        clip: Recording = await self._renderer.in_thread(make)
        return clip


async def render_parts(narrator: Narrator, parts: Sequence[str]) -> SynthResult:
    """Render all parts and join them."""
    results = [await narrator.render(part) for part in parts]
    summary = _joined([result.summary for result in results], narrator.seed)
    return SynthResult(np.concatenate([result.samples for result in results]), summary)


async def stream_parts(narrator: Narrator, parts: Sequence[str]) -> AsyncGenerator[AudioChunk, None]:
    """Render all parts and yield their audio as that of one text."""
    summaries: list[Summary] = []
    index = 0
    for part in parts:
        async with aclosing(narrator.stream(part)) as chunks:
            async for chunk in chunks:
                summary = None
                if chunk.summary is not None:
                    summaries.append(chunk.summary)
                    summary = _joined(summaries, narrator.seed) if len(summaries) == len(parts) else None
                yield replace(chunk, index=index, seed=narrator.seed, summary=summary)
                index += 1


def rehearsals(request: SynthRequest, parts: Sequence[str], spec: ModelSpec) -> list[list[SynthRequest]]:
    """Requests as large as those of the parts can become, in handy lots: what fits them fits the parts."""
    size = spec.input_samples_per_patch
    carried, anchor = (np.zeros(patches * size, np.int16) for patches in (CARRIED_PATCHES, _ANCHOR_PATCHES))
    style = style_of(request.text)[0]
    made = [request.model_copy(update={"text": style + parts[0]})]
    voice = request.reference
    if voice is None and request.prompt is not None and request.prompt.clip is not None:
        voice = Reference("", request.prompt.clip)
    voice = voice or Reference("", anchor)
    own = request.prompt
    for before, part in pairwise(parts):
        prompt = Prompt("", carried, text=before)
        if own is not None and _samples(own, spec) > len(carried):
            prompt = own
        made.append(request.model_copy(update={"text": part, "prompt": prompt, "reference": voice}))
    return [made[start : start + _CHECKED_AT_ONCE] for start in range(0, len(made), _CHECKED_AT_ONCE)]


def _samples(recording: Recording, spec: ModelSpec) -> int:
    """Samples a recording has, or had before it was encoded."""
    if recording.clip is not None:
        return len(recording.clip)
    return 0 if recording.features is None else len(recording.features) * spec.input_samples_per_patch


def _joined(summaries: Sequence[Summary], seed: int) -> Summary:
    """What is said of a text in parts: ``takes`` is the most any part needed, one part's ``length`` is the text's."""
    cut = any(summary.stop_reason is StopReason.LENGTH for summary in summaries)
    return Summary(
        seed=seed,
        takes=max(summary.takes for summary in summaries),
        stop_reason=StopReason.LENGTH if cut else StopReason.STOP,
        patches=sum(summary.patches for summary in summaries),
        text_tokens=sum(summary.text_tokens for summary in summaries),
        sample_rate_hz=summaries[0].sample_rate_hz,
    )
