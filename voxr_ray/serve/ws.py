"""Speech sessions over a WebSocket: text arrives word by word, audio leaves sentence by sentence.

A session is two tasks on the router's event loop. The listener, here, receives (always: only so is a leaver noticed),
cuts text into sentences and hands them to the :class:`~voxr_ray.serve.ws_speaker.Speaker`, which renders and sends.
When the client is gone all of it is cancelled, and the slot is free.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI
from starlette.websockets import WebSocket, WebSocketDisconnect

from voxr_ray.encode import AudioFormat
from voxr_ray.errors import InvalidRequest, TooLarge, VoxrError
from voxr_ray.serve.http_errors import RequestTimeout
from voxr_ray.serve.logs import request_id_of
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.split import SentenceBuffer
from voxr_ray.serve.ws_flow import Flow
from voxr_ray.serve.ws_messages import Cancel, Config, Done, Flush, Read, Text, error_message, parse_message
from voxr_ray.serve.ws_speaker import Speaker

_FORMATS = (AudioFormat.WAV, AudioFormat.PCM)
_MAX_WAITING = 1000
_MAX_FRAGMENT = 16_384
"""Characters in one message: they are cut on the event loop."""


def add_session_route(app: FastAPI, speech: SpeechService) -> None:
    """Serve sessions.

    Args:
        app: Gets the route.
        speech: Does the work.
    """

    @app.websocket("/v1/audio/speech/stream")
    async def speak_live(websocket: WebSocket) -> None:
        await Session(websocket, speech).run()


class Session:
    """One connection.

    Args:
        websocket: Not yet accepted.
        speech: Renders the sentences.
    """

    def __init__(self, websocket: WebSocket, speech: SpeechService) -> None:
        self._socket = websocket
        self._speech = speech
        self._settings = speech.settings
        self._request_id = request_id_of(websocket.headers)
        self._flow = Flow(self._settings.ws_lead_seconds)
        self._speaker = Speaker(speech, self._flow, self._send)
        self._buffer = SentenceBuffer(self._settings.max_part_chars)
        self._sending = asyncio.Lock()
        self._active_s = asyncio.get_running_loop().time()
        self._configured = False

    async def run(self) -> None:
        """Serve the connection to its end."""
        await self._socket.accept()
        try:
            async with asyncio.TaskGroup() as tasks:
                speaker = tasks.create_task(self._speaker.run(tasks))
                await self._listen()
                speaker.cancel()
                self._speaker.stop()
        except* WebSocketDisconnect:
            pass  # it left while something was being sent

    async def _listen(self) -> None:
        """Receive until the client is gone, or silent for too long."""
        while (message := await self._receive()) is not None:
            try:
                await self._handle(message)
            except VoxrError as error:
                await self._send(error_message(error))

    async def _receive(self) -> dict[str, Any] | None:
        idle_s = self._settings.ws_idle_timeout_s
        now = asyncio.get_running_loop().time
        while True:
            try:
                async with asyncio.timeout_at(self._active_s + idle_s) as limit:
                    message = dict(await self._socket.receive())
            except TimeoutError:
                if not limit.expired():
                    raise
                if now() < self._active_s + idle_s:
                    continue  # audio has been sent meanwhile
                await self._send(error_message(RequestTimeout(f"nothing was sent or spoken for {idle_s:g} s")))
                await self._socket.close()
                return None
            self._active_s = now()
            return None if message["type"] == "websocket.disconnect" else message

    async def _handle(self, received: dict[str, Any]) -> None:
        if received.get("text") is None:
            raise InvalidRequest("messages are JSON text; binary ones are not understood")
        message = parse_message(received["text"], self._settings)
        match message:
            case Read():
                self._flow.read(message.bytes)
                return
            case Cancel():
                self._buffer.clear()
                self._speaker.cancel()
                return
        if self._speaker.waiting >= _MAX_WAITING:
            raise TooLarge(f"{_MAX_WAITING} messages wait already: wait for audio.done, or send input.cancel")
        if isinstance(message, Config):
            await self._configure(message)
        elif not self._configured:
            raise InvalidRequest("session.config must come first", param="type")
        elif isinstance(message, Text):
            self._take(message.text)
        elif isinstance(message, Flush | Done):
            self._speaker.say(self._buffer.flush())
            if isinstance(message, Done):
                self._speaker.finish()

    async def _configure(self, message: Config) -> None:
        if self._speaker.waits_for_configuration:
            raise InvalidRequest("another session.config waits for its turn", param="type")
        speech = await self._speech.parse(message.body(), self._request_id)
        if speech.audio_format not in _FORMATS:
            raise InvalidRequest(f"a session speaks in {' or '.join(_FORMATS)}", param="response_format")
        self._configured = True
        self._speaker.configure(message, speech)

    def _take(self, text: str) -> None:
        if len(text) > _MAX_FRAGMENT:
            raise TooLarge(
                f"text has {len(text)} characters; at most {_MAX_FRAGMENT} come in one message", param="text"
            )
        most = self._settings.max_input_chars
        waiting = self._speaker.waiting_chars + len(self._buffer) + len(text)
        if waiting > most:
            raise TooLarge(
                f"{waiting} characters would wait to be spoken; at most {most} may: this fragment is dropped, send it "
                "again after an audio.done",
                param="text",
            )
        self._speaker.say(self._buffer.feed(text))

    async def _send(self, message: dict[str, Any] | bytes) -> None:
        async with self._sending:
            if isinstance(message, bytes):
                await self._socket.send_bytes(message)
            else:
                await self._socket.send_text(json.dumps(message, ensure_ascii=False))
            self._active_s = asyncio.get_running_loop().time()
