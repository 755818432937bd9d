"""From a speech request to its answer: what the HTTP endpoint and the router's methods share.

Runs on a router's event loop. What would hold the loop up (large bodies, recordings, long answers) goes to two threads
of its own: each job there is bounded by the limits on requests, so callers who leave cannot keep them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from starlette.responses import Response

from voxr_ray.audio import decode_recording, to_pcm16
from voxr_ray.config import Settings
from voxr_ray.encode import AudioEncoder, encode_whole
from voxr_ray.errors import EngineError, InvalidRequest, VoxrError
from voxr_ray.messages import AudioChunk, Prompt, Recording, Reference, Summary, SynthRequest, SynthResult
from voxr_ray.serve.board import Board
from voxr_ray.serve.failover import Failover, FailoverPolicy
from voxr_ray.serve.failover_record import FailoverRecord
from voxr_ray.serve.http_errors import RequestTimeout, code_of
from voxr_ray.serve.http_schema import Speech, parse_speech
from voxr_ray.serve.metrics import RenderKind, RouterMetrics
from voxr_ray.serve.narration import Narrator, parts_of, rehearsals, render_parts, stream_parts
from voxr_ray.serve.output import (
    EVENT_STREAM,
    SpokenFile,
    audio_headers,
    delta_event,
    done_event,
    error_event,
    file_headers,
)
from voxr_ray.serve.remote import fetch_both
from voxr_ray.serve.responses import AudioStream, StreamBroken
from voxr_ray.serve.spelling import Language, Speller
from voxr_ray.serve.text import compose, style_of
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.values import ReplicaInfo
from voxr_ray.serve.voices import Voices, spoken_with
from voxr_ray.serve.ws_flow import Flow

_log = logging.getLogger(__name__)

T = TypeVar("T")

_INLINE_BYTES = 64 * 1024
"""Bodies up to this size are parsed on the loop: the hop to a thread would cost more."""

_INLINE_CHARS = 4096
"""Texts up to this length are cut on the loop."""

_INLINE_SAMPLES = 2**15
"""Audio up to this length is encoded on the loop, for the same reason: some milliseconds for the slowest codec."""


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
        """Return if a replica answers.

        Raises:
            VoxrError: None does.
        """
        await self._replicas.call("info")

    # ---- for handles ----

    async def render(self, request: SynthRequest, begun_s: float | None = None) -> SynthResult:
        """Render a text of any length to the end.

        Args:
            request: Text, voice and parameters.
            begun_s: When its caller asked for it, by the clock of the metrics; now by default.
        """
        with self.metrics.render(RenderKind.WHOLE, request, begun_s) as render:
            request = await self.spelled(request)
            parts = await self._parts(request)
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
            parts = await self._parts(request)
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

    async def answer(self, body: bytes, request_id: str, deadline: float) -> Response:
        """The answer to a speech request.

        Args:
            body: JSON body.
            request_id: For logs.
            deadline: Time of the event loop at which the answer must be complete.

        Raises:
            VoxrError: Nothing has been sent, and this says why.
        """
        begun_s = self.metrics.clock()
        try:
            async with asyncio.timeout_at(deadline) as limit:
                speech = await self.parse(body, request_id)
                request = await self.complete(speech)
                notice = (await self.info()).notice
                if speech.stream:
                    return await self._streamed(speech, request, notice, deadline, begun_s)
                file = await self._file(speech, await self.render(request, begun_s))
                headers = file_headers(file, self.settings.served_name, notice)
                return Response(file.data, headers=headers, media_type=file.audio_format.media_type)
        except TimeoutError as error:
            if limit.expired():
                raise self.timed_out() from error
            raise

    async def speak_to_file(self, body: bytes, request_id: str) -> SpokenFile:
        """The answer to a speech request, as a file.

        Args:
            body: JSON body of a request that does not stream.
            request_id: For logs.

        Raises:
            VoxrError: The request was refused, or its render failed.
        """
        speech = await self.parse(body, request_id)
        if speech.stream:
            raise InvalidRequest("this answer is not a stream: leave stream and stream_format out", param="stream")
        return await self._file(speech, await self.render(await self.complete(speech)))

    def timed_out(self) -> RequestTimeout:
        """What a request whose time is up is told."""
        return RequestTimeout(
            f"nothing was ready within {self.settings.request_timeout_s:g} s, the time an answer may take"
        )

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

    async def _file(self, speech: Speech, result: SynthResult) -> SpokenFile:
        rate_hz = result.summary.sample_rate_hz
        arguments = result.samples, speech.audio_format, rate_hz, speech.sample_rate_hz
        inline = len(result.samples) <= _INLINE_SAMPLES
        data, file_hz = encode_whole(*arguments) if inline else await self.in_thread(encode_whole, *arguments)
        return SpokenFile(data, speech.audio_format, file_hz, result.audio_seconds, result.summary)

    async def _streamed(
        self, speech: Speech, request: SynthRequest, notice: str | None, deadline: float, begun_s: float
    ) -> AudioStream:
        """Wait for the first audio, then commit to an answer: until then a failure still has a status."""
        chunks = self.render_stream(request, begun_s)
        try:
            first = await anext(chunks, None)
            while first is not None and len(first.samples) == 0:
                first = await anext(chunks, None)
            if first is None:
                raise EngineError("the model made no audio for this text")
            encoder = AudioEncoder(speech.audio_format, first.sample_rate_hz, speech.sample_rate_hz)
        except BaseException:
            await chunks.aclose()
            raise
        name = self.settings.served_name
        headers = audio_headers(name, first.seed, encoder.rate_hz, speech.audio_format, notice)
        media_type = speech.audio_format.media_type
        if speech.sse:
            media_type = EVENT_STREAM
            headers["cache-control"] = "no-cache"
        return AudioStream(self._stream_body(speech, encoder, first, chunks, deadline), headers, media_type)

    async def _stream_body(
        self,
        speech: Speech,
        encoder: AudioEncoder,
        first: AudioChunk,
        rest: AsyncGenerator[AudioChunk, None],
        deadline: float,
    ) -> AsyncGenerator[bytes, None]:
        chunk: AudioChunk | None = first
        summary: Summary | None = None
        wrap = delta_event if speech.sse else bytes
        lead_s = self.settings.stream_lead_seconds
        flow = None if lead_s is None else Flow(lead_s)
        with closing(encoder):
            try:
                while chunk is not None:
                    inline = len(chunk.samples) <= _INLINE_SAMPLES
                    data = (
                        encoder.encode(chunk.samples) if inline else await self.in_thread(encoder.encode, chunk.samples)
                    )
                    if flow is not None:
                        async with asyncio.timeout_at(deadline):
                            await flow.room(len(data), len(chunk.samples) / chunk.sample_rate_hz)
                    if data:
                        yield wrap(data)
                    summary = chunk.summary
                    # Timed piece by piece: a time-out may not span a yield, for it would fire into the consumer.
                    chunk = await _next_before(deadline, rest)
            except (VoxrError, TimeoutError) as error:
                reason = str(error) or f"it took more than {self.settings.request_timeout_s:g} s"
                _log.error("request %s broke off after its first byte: %s", speech.request.request_id, reason)
                failure = error if isinstance(error, VoxrError) else RequestTimeout(reason)
                self.metrics.broken_stream(code_of(failure))
                if speech.sse:
                    yield error_event(failure)
                raise StreamBroken(reason) from error
            finally:
                await rest.aclose()
            if data := encoder.finish():
                yield wrap(data)
            if speech.sse and summary is not None:
                yield done_event(summary)

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

    async def _parts(self, request: SynthRequest) -> list[str]:
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


async def _next_before(deadline: float, chunks: AsyncIterator[AudioChunk]) -> AudioChunk | None:
    async with asyncio.timeout_at(deadline):
        return await anext(chunks, None)
