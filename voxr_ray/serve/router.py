"""The router deployment: the HTTP ingress and the public methods for handles. Imports no torch, holds no model.

Runs on the event loop of its actor. Values it takes and gives are those of :mod:`voxr_ray.messages`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from voxr_ray.config import Settings
from voxr_ray.errors import VoxrError
from voxr_ray.messages import AudioChunk, Prompt, Reference, SynthRequest, SynthResult
from voxr_ray.serve.batch import synthesize_batch
from voxr_ray.serve.defaults import completed
from voxr_ray.serve.failover_record import FailoverCounts
from voxr_ray.serve.ingress import build_http_app
from voxr_ray.serve.logs import set_up_logs
from voxr_ray.serve.metrics import RouterMetrics
from voxr_ray.serve.publisher import Publisher
from voxr_ray.serve.routing.caller import RoutedReplicas
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.values import VoiceClip, VoiceInfo
from voxr_ray.serve.voice_names import DEFAULT_VOICE
from voxr_ray.serve.voices import Voices


class Router:
    """Takes requests and hands them to replicas.

    Args:
        settings: The server's settings.
        replicas: Handle of the replica deployment.
        library: Handle of the library deployment.
    """

    def __init__(self, settings: Settings, replicas: DeploymentHandle[Any], library: DeploymentHandle[Any]) -> None:
        set_up_logs()
        metrics = RouterMetrics()
        self._publisher = Publisher(metrics.publish)
        self._speech = SpeechService(settings, RoutedReplicas(replicas), Voices(Replicas(library)), metrics)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The HTTP application; Serve asks for it after the constructor."""
        return build_http_app(self._speech)

    async def synthesize(self, request: SynthRequest) -> SynthResult:
        """Render one utterance to the end.

        Args:
            request: Text, voice and parameters; the server's defaults where it does not say.

        Returns:
            The audio, float32 ``(samples,)``, and how it was made. It can be long: take it by reference, as handles
            do by default.

        Raises:
            VoxrError: The request was refused, or its render failed.
        """
        return await self._speech.render(completed(request, self._speech.settings))

    async def synthesize_stream(self, request: SynthRequest) -> AsyncGenerator[AudioChunk, None]:
        """Render one utterance and yield its audio while it is made; call with ``options(stream=True)``.

        Serve does not notice a consumer that stops reading: cancel the response when you leave early.

        Args:
            request: Text, voice and parameters, as for `synthesize`. Bad takes are not replaced.

        Yields:
            Chunks of float32 ``(samples,)``; the last one carries the summary.

        Raises:
            VoxrError: The request was refused, or its render failed.
        """
        async with aclosing(self._speech.render_stream(completed(request, self._speech.settings))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def synthesize_batch(self, requests: list[SynthRequest]) -> list[SynthResult | VoxrError]:
        """Render many utterances, ``batch_concurrency`` of them at a time.

        Args:
            requests: At most ``max_batch_items``.

        Returns:
            A result or an error for each, in their order: one that fails does not fail the others.

        Raises:
            TooLarge: There are more than a batch may hold.
        """
        return await synthesize_batch(self._speech, [completed(request, self._speech.settings) for request in requests])

    async def encode_reference(self, audio: bytes) -> Reference:
        """Encode a recording as a voice that any replica can speak with.

        Args:
            audio: A file: wav, flac, mp3, ogg, m4a or webm.

        Returns:
            Features float32 ``(patches, patch_size, feat_dim)`` and the digest of the samples.

        Raises:
            BadAudio: The file cannot be used.
            TooLarge: The recording is too long.
        """
        return await self._speech.encode_reference(audio)

    async def encode_prompt(self, audio: bytes, text: str) -> Prompt:
        """Encode a recording to continue from.

        Args:
            audio: A file: wav, flac, mp3, ogg, m4a or webm.
            text: What it says.

        Returns:
            Features float32 ``(patches, patch_size, feat_dim)``, the digest of the samples, and the text.

        Raises:
            BadAudio: The file cannot be used.
            TooLarge: The recording is too long.
            InvalidRequest: The text is blank.
        """
        return await self._speech.encode_prompt(audio, text)

    async def failovers(self) -> FailoverCounts:
        """What this router did about lost replicas so far."""
        return self._speech.failovers.snapshot()

    async def voices(self) -> list[str]:
        """Names a request may use as its voice."""
        return [DEFAULT_VOICE, *(voice.name for voice in await self._speech.voices.list())]

    async def add_voice(
        self, name: str, audio: bytes, text: str | None = None, consent: str | None = None
    ) -> VoiceInfo:
        """Store a recording as a voice that every router speaks with from now on, also after a restart.

        Args:
            name: Its name: 1 to 64 letters, digits, ``-``, ``_`` and inner spaces; capitals make no difference.
            audio: A file of at most 10 MiB and 1 to 60 seconds: wav, flac, mp3, ogg, m4a, aac or webm.
            text: What it says. With it, speech in this voice continues from the recording.
            consent: Anything to keep about the speaker's consent.

        Raises:
            InvalidRequest: The name cannot be used, or a text is blank.
            VoiceExists: The name is taken.
            BadAudio: The recording cannot be used.
            TooLarge: The recording, a text, or the number of voices is over its limit.
        """
        return await self._speech.voices.add(name, audio, text, consent)

    async def delete_voice(self, name: str) -> None:
        """Remove a voice; nobody can ask for it from now on.

        Raises:
            UnknownVoice: There is none of that name.
        """
        await self._speech.voices.delete(name)

    async def voice(self, name: str) -> VoiceClip:
        """A stored voice, to build requests with: its recording, and its transcript if it has one.

        Raises:
            UnknownVoice: There is none of that name.
        """
        return await self._speech.voices.find(name, (await self._speech.info()).spec.input_sample_rate_hz)

    def __del__(self) -> None:
        if publisher := getattr(self, "_publisher", None):
            publisher.close()
