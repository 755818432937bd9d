"""From a speech request to its audio: what the HTTP endpoints, sessions and the router's methods share.

Runs on a router's event loop. What would hold the loop up (large bodies, recordings, long answers) goes to two threads
of its own: each job there is bounded by the limits on requests, so callers who leave cannot keep them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from voxr_ray.audio import decode_recording, to_pcm16
from voxr_ray.config import Settings
from voxr_ray.errors import EngineError, InvalidRequest
from voxr_ray.messages import AudioChunk, Prompt, Recording, Reference, SynthRequest, SynthResult
from voxr_ray.serve.board import Board
from voxr_ray.serve.failover import Failover, FailoverPolicy
from voxr_ray.serve.failover_record import FailoverRecord
from voxr_ray.serve.hedge import first_answer
from voxr_ray.serve.http_schema import Speech, parse_speech
from voxr_ray.serve.metrics import RenderKind, RouterMetrics
from voxr_ray.serve.narration import Narrator, parts_of, rehearsals, render_parts, stream_parts
from voxr_ray.serve.remote import fetch_both
from voxr_ray.serve.spelling import Language, Speller
from voxr_ray.serve.text import compose, style_of
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.values import ReplicaInfo
from voxr_ray.serve.voices import Voices, spoken_with

T = TypeVar("T")

_PROBES, _PROBE_EVERY_S = 4, 1.0
"""Replicas that are asked for a sign of life, and how long each of them is waited for alone."""

_INLINE_BYTES = 64 * 1024
"""Bodies up to this size are parsed on the loop: the hop to a thread would cost more."""

_INLINE_CHARS = 4096
"""Texts up to this length are cut on the loop."""


class SpeechService:
    """Renders speech through the replicas.

    Args:
        settings: The server's settings.
        replicas: Where the work is done.
        voices: The named voices.
        metrics: Told of every render.
    """

    def __init__(
        self, settings: Settings, replicas: Replicas, voices: Voices, metrics: RouterMetrics | None = None
    ) -> None:
        self.settings = settings
        self.voices = voices
        self.metrics = metrics or RouterMetrics()
        self.board = Board(replicas)
        self.failovers = FailoverRecord(self.metrics)
        self._replicas = Failover(replicas, FailoverPolicy.of(settings), self.failovers)
        self._info: ReplicaInfo | None = None
        self._speller = Speller()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="decode")

    async def info(self) -> ReplicaInfo:
        """Facts of the model, asked of a replica once."""
        if self._info is None:
            self._info = await self._replicas.call("info")
        return self._info

    async def probe(self) -> None:
        """Return if a replica answers, whichever.

        Raises:
            VoxrError: None does.
        """
        await first_answer(lambda: self._replicas.call("info"), every_s=_PROBE_EVERY_S, most=_PROBES)

    # ---- for handles ----

    async def render(self, request: SynthRequest, begun_s: float | None = None) -> SynthResult:
        """Render a text of any length to the end.

        Args:
            request: Text, voice and parameters.
            begun_s: When its caller asked for it, by the clock of the metrics; now by default.
        """
        with self.metrics.render(RenderKind.WHOLE, request, begun_s) as render:
            request = await self.spelled(request)
            parts = await self.parts(request)
            if parts:
                result = await render_parts(await self.narrator(request), parts)
            else:
                result = await self.render_one(request)
            render.came(len(result.samples), result.summary.sample_rate_hz)
            return result

    async def render_stream(
        self, request: SynthRequest, begun_s: float | None = None
    ) -> AsyncGenerator[AudioChunk, None]:
        """Render a text of any length and pass its chunks on; close it to leave. Arguments are those of `render`."""
        with self.metrics.render(RenderKind.STREAM, request, begun_s) as render:
            request = await self.spelled(request)
            parts = await self.parts(request)
            source = stream_parts(await self.narrator(request), parts) if parts else self.stream_one(request)
            async with aclosing(source) as chunks:
                async for chunk in chunks:
                    render.came(len(chunk.samples), chunk.sample_rate_hz)
                    yield chunk
                    render.asked()

    async def spelled(self, request: SynthRequest) -> SynthRequest:
        """The request with its text in words, if it asks for that; the style it may begin with stays as it is.

        Raises:
            InvalidRequest: The text cannot be spelled out.
        """
        if not request.normalize:
            return request
        style, text = style_of(request.text)
        text = await self.spell_out(text, request.normalize)
        return request.model_copy(update={"text": style + text, "normalize": False})

    async def spell_out(self, text: str, wanted: bool | Language) -> str:
        """A text in words, safe to follow a style.

        Raises:
            InvalidRequest: It cannot be spelled out.
        """
        return compose(await self.in_thread(self._speller.spell_out, text, wanted), None)

    async def narrator(self, request: SynthRequest) -> Narrator:
        """What renders the parts of a text that has some."""
        return Narrator(request, (await self.info()).spec, self, self.settings.request_timeout_s)

    async def render_one(self, request: SynthRequest) -> SynthResult:
        """Render one request to the end, in one piece."""
        async with aclosing(self._replicas.render("synthesize_pieces", request)) as pieces:
            chunks: list[AudioChunk] = [piece async for piece in pieces]
        summary = chunks[-1].summary
        if summary is None:
            raise EngineError("an answer has no end")
        samples = np.concatenate([chunk.samples for chunk in chunks])
        if len(samples) == 0:
            raise EngineError("the model made no audio for this text")
        return SynthResult(samples, summary)

    async def stream_one(self, request: SynthRequest) -> AsyncGenerator[AudioChunk, None]:
        """Render one request, in one piece, and pass its chunks on; close it to leave."""
        async with aclosing(self._replicas.render("synthesize_stream", request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def encode_reference(self, audio: bytes) -> Reference:
        """Decode a file and encode it as a voice."""
        recording = await self._recording(audio)
        encoded: Reference = await self._replicas.call(
            "encode_reference", Reference(digest=recording.digest, clip=recording.clip)
        )
        return encoded

    async def encode_prompt(self, audio: bytes, text: str) -> Prompt:
        """Decode a file and encode it as a clip to continue from."""
        if not text.strip():
            raise InvalidRequest("the transcript is blank: a prompt is continued from what it says", param="text")
        recording = await self._recording(audio)
        encoded: Prompt = await self._replicas.call(
            "encode_prompt", Prompt(digest=recording.digest, clip=recording.clip, text=text)
        )
        return encoded

    # ---- for HTTP ----

    async def complete(self, speech: Speech) -> SynthRequest:
        """The request with its recordings and its voice."""
        request = speech.request
        if not speech.has_recordings and speech.voice is None:
            return request
        rate_hz = (await self.info()).spec.input_sample_rate_hz
        voice = None if speech.voice is None else await self.voices.find(speech.voice, rate_hz)
        if speech.has_recordings:
            reference, prompt = await fetch_both(speech.reference, speech.prompt, self.settings.max_body_bytes)
            speech = replace(speech, reference=reference, prompt=prompt)
            request = await self.in_thread(speech.with_recordings, rate_hz, self.settings)
        return request if voice is None else spoken_with(request, voice, styled=speech.styled)

    async def parse(self, body: bytes, request_id: str) -> Speech:
        """Read and check a JSON body."""
        if len(body) <= _INLINE_BYTES:
            return parse_speech(body, self.settings, request_id)
        return await self.in_thread(parse_speech, body, self.settings, request_id)

    async def _recording(self, audio: bytes) -> Recording:
        rate_hz = (await self.info()).spec.input_sample_rate_hz

        def decode() -> Recording:
            seconds = self.settings.min_reference_seconds, self.settings.max_reference_seconds
            samples = decode_recording(audio, rate_hz, min_seconds=seconds[0], max_seconds=seconds[1], param="audio")
            return Recording.of_clip(to_pcm16(samples), rate_hz)

        return await self.in_thread(decode)

    async def parts(self, request: SynthRequest) -> list[str]:
        """The parts of a request's text, all of which fit; none if it is rendered as it is."""
        most = self.settings.max_part_chars
        if len(request.text) <= _INLINE_CHARS:
            parts = parts_of(request.text, most)
        else:
            parts = await self.in_thread(parts_of, request.text, most)
        if parts:
            for lot in rehearsals(request, parts, (await self.info()).spec):
                await self._replicas.call("check_fit", lot)
        return parts

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that would hold the loop up, of bounded length."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
