"""The HTTP surface over a local replica: everything but Ray."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.fakes.sink import FakeSink
from tests.fakes.slot_model import make_fake_model
from voxr_ray.app import find_shipped_voices
from voxr_ray.config import Settings
from voxr_ray.serve.in_process import InProcess
from voxr_ray.serve.ingress import build_http_app
from voxr_ray.serve.library import Library
from voxr_ray.serve.metrics import RouterMetrics
from voxr_ray.serve.replica import Replica
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.voices import Voices


class LocalServer:
    """A replica on the fake model, and a client of its HTTP surface.

    Args:
        settings: What differs from the defaults.
        wrap: Puts something between the router and the replica.
        **model: Arguments of the fake model.
    """

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        wrap: Callable[[InProcess], Any] = lambda replicas: replicas,
        **model: Any,
    ) -> None:
        self._folder = TemporaryDirectory()
        chosen = {
            "model": "fake/none",
            "model_name": "fake",
            "device": "cpu",
            "voices_dir": str(Path(self._folder.name) / "voices"),
        }
        self.settings = Settings.load(chosen | (settings or {}), {})
        self.replica = Replica(self.settings, partial(make_fake_model, **model))
        voices = Voices(InProcess(Library(self.settings, partial(find_shipped_voices, self.settings.model))))  # type: ignore[arg-type]
        self.sink = FakeSink()
        replicas: Any = wrap(InProcess(self.replica))
        self.service = SpeechService(self.settings, replicas, voices, RouterMetrics(self.sink))
        self.app = build_http_app(self.service)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def speak(self, **body: Any) -> httpx.Response:
        """POST a speech request; the answer is WAV unless the body says otherwise."""
        return await self.client.post("/v1/audio/speech", json={"response_format": "wav"} | body)

    async def counts(self) -> Any:
        return (await self.replica.engine_record()).record.counts

    async def close(self) -> None:
        await self.client.aclose()
        self.replica.close()
        self._folder.cleanup()
