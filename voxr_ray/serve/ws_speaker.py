"""The speaking half of a session: renders sentences in order, one at a time, and sends their audio.

Runs on a router's event loop as one task of its session, with one more for the sentence under way: cancelling that
is how ``input.cancel`` ends it, and how a leaver frees the slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from voxr_ray.audio import pcm16_bytes, wav_header
from voxr_ray.encode import AudioFormat
from voxr_ray.errors import VoxrError
from voxr_ray.messages import AudioChunk
from voxr_ray.serve.http_errors import RequestTimeout
from voxr_ray.serve.http_schema import Speech
from voxr_ray.serve.metrics import Render, RenderKind
from voxr_ray.serve.narration import Narrator
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.spelling import Language
from voxr_ray.serve.text import compose
from voxr_ray.serve.ws_flow import Flow
from voxr_ray.serve.ws_messages import Config, error_message

_BYTES_PER_SAMPLE = 2

Send = Callable[[dict[str, Any] | bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Configure:
    config: Config
    speech: Speech


@dataclass(frozen=True, slots=True)
class _Say:
    sentence: str


@dataclass(frozen=True, slots=True)
class _Finish:
    """The end of an utterance."""


@dataclass(frozen=True, slots=True)
class _Cancelled:
    """What was asked for before this has been dropped."""


class Speaker:
    """Speaks for one session.

    Args:
        speech: Renders.
        flow: Says when a frame may be sent.
        send: Sends a JSON message or a binary frame.
    """

    def __init__(self, speech: SpeechService, flow: Flow, send: Send) -> None:
        self._speech = speech
        self._flow = flow
        self._send = send
        self._agenda: deque[_Configure | _Say | _Finish | _Cancelled] = deque()
        self._news = asyncio.Event()
        self._current: asyncio.Task[None] | None = None
        self._narrator: Narrator | None = None
        self._format = AudioFormat.WAV
        self._normalize: bool | Language = False
        self._in_frames = False
        self._said = 0

    @property
    def waiting(self) -> int:
        """Things that are still to be done."""
        return len(self._agenda)

    @property
    def waiting_chars(self) -> int:
        """Characters that are still to be spoken."""
        return sum(len(each.sentence) for each in self._agenda if isinstance(each, _Say))

    @property
    def waits_for_configuration(self) -> bool:
        """Whether a configuration has been given that is not in force yet."""
        return any(isinstance(each, _Configure) for each in self._agenda)

    def configure(self, config: Config, speech: Speech) -> None:
        """Use this from here on."""
        self._put(_Configure(config, speech))

    def say(self, sentences: list[str]) -> None:
        """Speak these."""
        for sentence in sentences:
            self._put(_Say(sentence))

    def finish(self) -> None:
        """Say when everything so far has been spoken."""
        self._put(_Finish())

    def cancel(self) -> None:
        """Forget what waits, except a configuration, and stop what is being spoken."""
        self._agenda = deque(each for each in self._agenda if isinstance(each, _Configure))
        self.stop()
        self._put(_Cancelled())

    def stop(self) -> None:
        """Stop the sentence under way, if there is one."""
        if self._current is not None:
            self._current.cancel()

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Work until cancelled; sentences run as tasks of ``tasks``."""
        while True:
            while not self._agenda:
                self._news.clear()
                await self._news.wait()
            match self._agenda.popleft():
                case _Configure(config, speech):
                    await self._configure(config, speech)
                case _Say(sentence) if self._narrator is not None:
                    self._current = tasks.create_task(self._say(self._narrator, sentence))
                    await asyncio.wait([self._current])
                    self._current = None
                case _Say():
                    pass  # the configuration failed, and that has been said
                case _Finish():
                    await self._send({"type": "session.done", "total_sentences": self._said})
                    self._begin_anew()
                case _Cancelled():
                    await self._send({"type": "input.cancelled"})
                    self._begin_anew()

    def _put(self, item: _Configure | _Say | _Finish | _Cancelled) -> None:
        self._agenda.append(item)
        self._news.set()

    def _begin_anew(self) -> None:
        self._said = 0
        if self._narrator is not None:
            self._narrator.break_off()

    async def _configure(self, config: Config, speech: Speech) -> None:
        self._narrator = None
        limit_s = self._speech.settings.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                request = await self._speech.complete(speech)
                self._normalize = request.normalize
                self._narrator = await self._speech.narrator(request.model_copy(update={"normalize": False}))
        except TimeoutError:
            await self._send(error_message(RequestTimeout(f"no replica was there within {limit_s:g} s")))
            return
        except VoxrError as error:
            await self._send(error_message(error))
            return
        self._format = speech.audio_format
        self._in_frames = self._format is AudioFormat.PCM if config.stream_audio is None else config.stream_audio
        self._flow.window_bytes = config.max_unread_bytes

    async def _say(self, narrator: Narrator, sentence: str) -> None:
        """Speak one sentence: ``audio.start``, frames, ``audio.done``; a failure is said and the next one comes."""
        index, self._said = self._said, self._said + 1
        sent_bytes = 0
        started = failed = False
        held: list[bytes] = []
        try:
            text = compose(sentence, None)
            if self._normalize:
                text = await self._speech.spell_out(text, self._normalize)
            async with aclosing(self._chunks(narrator, text)) as chunks:
                async for chunk in chunks:
                    if not started:
                        started = True
                        await self._send(self._start(index, sentence, narrator.seed, chunk.sample_rate_hz))
                    pcm = pcm16_bytes(chunk.samples)
                    if self._in_frames:
                        head = b"" if sent_bytes else self._head(chunk.sample_rate_hz, None)
                        sent_bytes += await self._frame(head, pcm, chunk.sample_rate_hz)
                        continue
                    held.append(pcm)
                    if chunk.summary is not None:
                        pcm = b"".join(held)
                        head = self._head(chunk.sample_rate_hz, len(pcm) // _BYTES_PER_SAMPLE)
                        sent_bytes += await self._frame(head, pcm, chunk.sample_rate_hz)
        except VoxrError as error:
            failed = True
            narrator.break_off()
            await self._send(error_message(error, index))
        if started:
            done = {"type": "audio.done", "sentence_index": index, "total_bytes": sent_bytes, "error": failed}
            await self._send(done)

    async def _chunks(self, narrator: Narrator, text: str) -> AsyncGenerator[AudioChunk, None]:
        """The audio of one sentence, counted, each chunk within the time an answer may take."""
        with self._speech.metrics.render(RenderKind.SESSION, narrator.request) as render:
            async with aclosing(narrator.stream(text)) as chunks:
                while (chunk := await self._next(chunks, render)) is not None:
                    yield chunk

    async def _next(self, chunks: AsyncIterator[AudioChunk], render: Render) -> AudioChunk | None:
        render.asked()
        limit_s = self._speech.settings.request_timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            if limit.expired():
                raise RequestTimeout(f"nothing was ready within {limit_s:g} s") from error
            raise
        if chunk is not None:
            render.came(len(chunk.samples), chunk.sample_rate_hz)
        return chunk

    def _start(self, index: int, sentence: str, seed: int, rate_hz: int) -> dict[str, Any]:
        return {"type": "audio.start", "sentence_index": index, "sentence_text": sentence.strip(),
                "format": str(self._format), "sample_rate": rate_hz, "channels": 1, "seed": seed}  # fmt: skip

    def _head(self, rate_hz: int, samples: int | None) -> bytes:
        return wav_header(rate_hz, samples) if self._format is AudioFormat.WAV else b""

    async def _frame(self, head: bytes, pcm: bytes, rate_hz: int) -> int:
        """Send a frame once there is room for it; returns its bytes."""
        if not pcm:
            return 0
        data = head + pcm
        await self._flow.room(len(data), len(pcm) / (_BYTES_PER_SAMPLE * rate_hz))
        await self._send(data)
        return len(data)
