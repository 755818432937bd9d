"""Speaking through a server: long texts in requests that fit its limits, which sound like one speaker all the same.

A text of more than one request is cut at sentences. A voice that the model chose for the first of them is kept: its
beginning is the reference of those after it, as the server itself does with the parts of one request.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from voxr_ray.cli.client import client_options, reaching, refusal
from voxr_ray.cli.speaker import Fields, Sound
from voxr_ray.errors import EngineError, Overloaded

if TYPE_CHECKING:
    import httpx
    import numpy as np

PART_WEIGHT = 750
"""Weight of one request's text, some 300 letters and twenty seconds of speech: that much an interruption costs at most,
and that often one hears how far it is."""

_FALLBACK_HZ = 24_000
"""Rate of OpenAI's raw samples, for servers whose headers do not name one."""

_LEAST_ANCHOR_SECONDS, _ANCHOR_SECONDS = 0.1, 10
"""Servers refuse references shorter than the first."""

_SEED_STRIDE = 10**6
_SEEDS = 2**32
_PATIENCE_S = 300.0
"""Longest time that parts after the first wait for room."""


class RemoteSpeaker:
    """Speaks through ``POST /v1/audio/speech``.

    Args:
        url: Address of the server.
        api_key: Its key, if it wants one.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        import httpx

        self._url = url
        self._client = httpx.AsyncClient(**client_options(url, api_key))
        self._fields: Fields = {}
        self._spoken = 0
        self._anchor: list[np.ndarray] | None = None

    async def begin(self, fields: Fields) -> list[str]:
        """Cut the text; the server checks the rest."""
        from voxr_ray.serve.narration import parts_of

        self._fields = fields
        if fields.get("voice", "default") == "default" and "ref_audio" not in fields:
            self._anchor = []
        return parts_of(fields["input"], PART_WEIGHT) or [fields["input"]]

    async def speak(self, part: str, *, live: bool) -> AsyncGenerator[Sound, None]:
        """Speak the next part, when there is room for it."""
        body = self._fields | {"input": part, "response_format": "pcm", "stream": live}
        if "seed" in body:
            body["seed"] = (body["seed"] + _SEED_STRIDE * self._spoken) % _SEEDS
        waited_s = 0.0
        while True:
            try:
                async with aclosing(self._answer(body)) as sounds:
                    async for sound in sounds:
                        self._keep(sound)
                        yield sound
                break
            except Overloaded as error:  # comes instead of an answer, never in the middle of one
                wait_s = error.retry_after_s
                if not self._spoken or wait_s is None or waited_s + wait_s > _PATIENCE_S:
                    raise
                waited_s += wait_s
                await asyncio.sleep(wait_s)
        self._spoken += 1
        if self._anchor and self._kept >= _LEAST_ANCHOR_SECONDS * self._rate_hz:
            self._fields = {name: value for name, value in self._fields.items() if name != "voice"}
            self._fields["ref_audio"] = self._reference
            self._anchor = None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _answer(self, body: dict[str, Any]) -> AsyncGenerator[Sound, None]:
        import numpy as np

        with reaching(self._url):
            async with self._client.stream("POST", "/v1/audio/speech", json=body) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise refusal(answer)
                self._rate_hz, seed = _facts(answer)
                held = b""
                async for data in answer.aiter_raw():
                    held += data
                    whole = len(held) - len(held) % 2  # a sample may be cut in two
                    samples = np.frombuffer(held[:whole], "<i2").astype(np.float32) / 32_768
                    held = held[whole:]
                    if len(samples):
                        yield Sound(samples, self._rate_hz, seed)

    def _keep(self, sound: Sound) -> None:
        if self._anchor is not None and self._kept < _ANCHOR_SECONDS * sound.rate_hz:
            self._anchor.append(sound.samples[: _ANCHOR_SECONDS * sound.rate_hz])

    @property
    def _kept(self) -> int:
        """Samples of the anchor."""
        return sum(map(len, self._anchor or ()))

    @property
    def _reference(self) -> str:
        import numpy as np

        from voxr_ray.audio import pcm16_bytes, wav_header

        clip = np.concatenate(self._anchor or [])[: _ANCHOR_SECONDS * self._rate_hz]
        return base64.b64encode(wav_header(self._rate_hz, len(clip)) + pcm16_bytes(clip)).decode()


def _facts(answer: httpx.Response) -> tuple[int, int | None]:
    """Rate and seed of an answer."""
    media_type = answer.headers.get("content-type", "")
    if not media_type.startswith("audio/"):
        raise EngineError(f"{answer.url} answers with {media_type or 'nothing'} instead of audio")
    seed = answer.headers.get("x-voxr-seed")
    return int(answer.headers.get("x-voxr-sample-rate", _FALLBACK_HZ)), None if seed is None else int(seed)
