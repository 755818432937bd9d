"""Speaking with an engine in this process: a router's service over a replica, without a cluster between them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from voxr_ray.cli.speaker import Fields, Sound

if TYPE_CHECKING:
    from voxr_ray.messages import SynthRequest
    from voxr_ray.serve.narration import Narrator
    from voxr_ray.serve.replica import Replica
    from voxr_ray.serve.speech import SpeechService

_ALL_OF_IT = 2**31
"""Characters of a text: its length is its owner's own affair here."""


class LocalSpeaker:
    """Speaks with an engine of this process.

    Args:
        replica: The model and its engine; closed with this.
        service: What a router does with requests.
    """

    def __init__(self, replica: Replica, service: SpeechService) -> None:
        self._replica = replica
        self._service = service
        self._request: SynthRequest | None = None
        self._narrator: Narrator | None = None

    async def begin(self, fields: Fields) -> list[str]:
        """Check a request."""
        service = self._service
        request = await service.complete(await service.parse(json.dumps(fields).encode(), "voxr-ray"))
        self._request = request = await service.spelled(request)
        parts = await service.parts(request)
        if not parts:
            return [request.text]
        self._narrator = await service.narrator(request)
        return parts

    async def speak(self, part: str, *, live: bool) -> AsyncGenerator[Sound, None]:
        """Speak the next part."""
        request, narrator = self._request, self._narrator
        if request is None:
            raise RuntimeError("begin comes first")
        if not live:
            done = await (narrator.render(part) if narrator else self._service.render_one(request))
            yield Sound(done.samples, done.summary.sample_rate_hz, narrator.seed if narrator else done.summary.seed)
            return
        async with aclosing(narrator.stream(part) if narrator else self._service.stream_one(request)) as chunks:
            async for chunk in chunks:
                yield Sound(chunk.samples, chunk.sample_rate_hz, narrator.seed if narrator else chunk.seed)

    async def close(self) -> None:
        """End the engine."""
        self._replica.close()


def open_local(given: Mapping[str, Any], environ: Mapping[str, str]) -> LocalSpeaker:
    """Load a model. Not on an event loop: it takes its time, and an interruption has to come through.

    Args:
        given: Settings chosen on the command line.
        environ: Environment variables; those of settings are used.

    Raises:
        ConfigurationError: A setting, the checkpoint or this machine does not allow it.
    """
    from voxr_ray.app import check_model, find_checkpoint, find_shipped_voices, load_checkpoint, resolve_device
    from voxr_ray.config import Settings
    from voxr_ray.serve.in_process import InProcess
    from voxr_ray.serve.library import Library
    from voxr_ray.serve.logs import set_up_logs
    from voxr_ray.serve.replica import Replica
    from voxr_ray.serve.speech import SpeechService
    from voxr_ray.serve.voices import Voices

    set_up_logs()
    _log_here()
    settings = resolve_device(Settings.load({"max_batch": 1} | dict(given), environ))
    settings = check_model(settings, find_checkpoint(settings))
    settings = settings.model_copy(update={"max_input_chars": _ALL_OF_IT})
    replica = Replica(settings, partial(load_checkpoint, settings))
    # Neither is a deployment's handle; both have what of it is used.
    replicas: Any = InProcess(replica)
    library: Any = InProcess(Library(settings, partial(find_shipped_voices, settings.model)))
    return LocalSpeaker(replica, SpeechService(settings, replicas, Voices(library)))


def _log_here() -> None:
    """Send this project's lines where the command's go; a replica sends them where Serve's go."""
    own = logging.getLogger("voxr_ray")
    own.handlers.clear()
    own.setLevel(logging.NOTSET)
    own.propagate = True
