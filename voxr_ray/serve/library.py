"""The library deployment: one replica that owns the folder of voices for all routers.

Routers ask it about a voice at every request that names one, and say which version they hold; the answer is the clip,
or that nothing changed. This costs a message (one or two milliseconds) and makes a voice work, and its deletion take
effect, everywhere at once, without news that a busy router could receive late and without a clip that anybody could
believe in for longer than it is true. A broadcast would save the message, and still need it for whoever missed one.

Runs on the event loop of its actor; files and decoding go to threads, uploads to other ones than look-ups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from voxr_ray.config import Settings
from voxr_ray.serve.logs import set_up_logs
from voxr_ray.serve.values import VoiceClip, VoiceInfo
from voxr_ray.serve.voice_store import VoiceStore

_READERS = 4
_WRITERS = 2


class Library:
    """The voices of an application.

    Args:
        settings: The server's settings.
        shipped: Finds the folder of voices that come with the model, on the machine of this deployment.
    """

    def __init__(self, settings: Settings, shipped: Callable[[], Path | None] | None = None) -> None:
        set_up_logs()
        self._store = VoiceStore(
            Path(settings.voices_dir).expanduser(),
            max_seconds=settings.max_reference_seconds,
            max_voices=settings.max_voices,
            shipped=None if shipped is None else shipped(),
        )
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="voice-read")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="voice-write")

    async def list(self) -> list[VoiceInfo]:
        """All voices by name."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._store.list)

    async def find(self, name: str, rate_hz: int, known_version: str | None) -> VoiceClip | None:
        """A voice as it is now, or ``None`` if the caller has that version; see :meth:`VoiceStore.find`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._store.find, name, rate_hz, known_version)

    async def add(self, name: str, audio: bytes, text: str | None, consent: str | None) -> VoiceInfo:
        """Check and store a voice; see :meth:`VoiceStore.add`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writers, self._store.add, name, audio, text, consent)

    async def delete(self, name: str) -> VoiceInfo:
        """Remove a voice; see :meth:`VoiceStore.delete`."""
        return await asyncio.get_running_loop().run_in_executor(self._writers, self._store.delete, name)
