"""Answers to speech requests over HTTP: files, and streams that go out while the audio is made.

What renders is the :class:`~voxr_ray.serve.speech.SpeechService`; here is what its audio is put into, and when an
answer is committed to. Runs on a router's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing

from starlette.responses import Response

from voxr_ray.encode import AudioEncoder, encode_whole
from voxr_ray.errors import EngineError, InvalidRequest, VoxrError
from voxr_ray.messages import AudioChunk, Summary, SynthRequest, SynthResult
from voxr_ray.serve.http_errors import RequestTimeout, code_of
from voxr_ray.serve.http_schema import Speech
from voxr_ray.serve.output import (
    EVENT_STREAM,
    SpokenFile,
    audio_headers,
    delta_event,
    done_event,
    error_event,
    file_headers,
)
from voxr_ray.serve.responses import AudioStream, StreamBroken
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.ws_flow import Flow

_log = logging.getLogger(__name__)

_INLINE_SAMPLES = 2**15
"""Audio up to this length is encoded on the loop, for the same reason: some milliseconds for the slowest codec."""


class Answers:
    """Makes answers.

    Args:
        service: Renders what they say.
    """

    def __init__(self, service: SpeechService) -> None:
        self.service = service

    async def answer(self, body: bytes, request_id: str, deadline: float) -> Response:
        """The answer to a speech request.

        Args:
            body: JSON body.
            request_id: For logs.
            deadline: Time of the event loop at which the answer must be complete.

        Raises:
            VoxrError: Nothing has been sent, and this says why.
        """
        begun_s = self.service.metrics.clock()
        try:
            async with asyncio.timeout_at(deadline) as limit:
                speech = await self.service.parse(body, request_id)
                request = await self.service.complete(speech)
                notice = (await self.service.info()).notice
                if speech.stream:
                    return await self._streamed(speech, request, notice, deadline, begun_s)
                file = await self._file(speech, await self.service.render(request, begun_s))
                headers = file_headers(file, self.service.settings.served_name, notice)
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
        speech = await self.service.parse(body, request_id)
        if speech.stream:
            raise InvalidRequest("this answer is not a stream: leave stream and stream_format out", param="stream")
        return await self._file(speech, await self.service.render(await self.service.complete(speech)))

    def timed_out(self) -> RequestTimeout:
        """What a request whose time is up is told."""
        return RequestTimeout(
            f"nothing was ready within {self.service.settings.request_timeout_s:g} s, the time an answer may take"
        )

    async def _file(self, speech: Speech, result: SynthResult) -> SpokenFile:
        rate_hz = result.summary.sample_rate_hz
        arguments = result.samples, speech.audio_format, rate_hz, speech.sample_rate_hz
        inline = len(result.samples) <= _INLINE_SAMPLES
        data, file_hz = encode_whole(*arguments) if inline else await self.service.in_thread(encode_whole, *arguments)
        return SpokenFile(data, speech.audio_format, file_hz, result.audio_seconds, result.summary)

    async def _streamed(
        self, speech: Speech, request: SynthRequest, notice: str | None, deadline: float, begun_s: float
    ) -> AudioStream:
        """Wait for the first audio, then commit to an answer: until then a failure still has a status."""
        chunks = self.service.render_stream(request, begun_s)
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
        name = self.service.settings.served_name
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
        lead_s = self.service.settings.stream_lead_seconds
        flow = None if lead_s is None else Flow(lead_s)
        with closing(encoder):
            try:
                while chunk is not None:
                    inline = len(chunk.samples) <= _INLINE_SAMPLES
                    data = (
                        encoder.encode(chunk.samples)
                        if inline
                        else await self.service.in_thread(encoder.encode, chunk.samples)
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
                reason = str(error) or f"it took more than {self.service.settings.request_timeout_s:g} s"
                _log.error("request %s broke off after its first byte: %s", speech.request.request_id, reason)
                failure = error if isinstance(error, VoxrError) else RequestTimeout(reason)
                self.service.metrics.broken_stream(code_of(failure))
                if speech.sse:
                    yield error_event(failure)
                raise StreamBroken(reason) from error
            finally:
                await rest.aclose()
            if data := encoder.finish():
                yield wrap(data)
            if speech.sse and summary is not None:
                yield done_event(summary)


async def _next_before(deadline: float, chunks: AsyncIterator[AudioChunk]) -> AudioChunk | None:
    async with asyncio.timeout_at(deadline):
        return await anext(chunks, None)
