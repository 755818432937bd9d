"""Load on a server: those who ask for speech over HTTP, as any OpenAI-compatible server takes it, and how they come.

Closed loop: so many users, each asking again when the answer is complete. Open loop: requests at a rate, whatever
became of those before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx

from voxr_ray.cli.listener import Player
from voxr_ray.cli.tables import quantile

TEXTS = (
    "The kettle is on, and the rain has not stopped since noon.",
    "Seven small boats left the harbour before anybody was awake.",
    "Please keep to the left until you reach the second bridge.",
)
"""What is said, in turn."""

_WAV_HEADER = 44


@dataclass
class Call:
    """One request and what became of it. Times on the clock of ``time.perf_counter``."""

    started_s: float
    ended_s: float = 0.0
    player: Player = field(default_factory=Player)
    error: str = ""

    @property
    def ttfa_s(self) -> float:
        """Seconds until the first audio."""
        return (self.player.first_s or self.ended_s) - self.started_s

    @property
    def rtf(self) -> float:
        """Seconds a second of audio took."""
        return (self.ended_s - self.started_s) / self.player.audio_s if self.player.audio_s else float("nan")


Speak: TypeAlias = Callable[[dict[str, Any]], Coroutine[Any, Any, Call]]
"""Renders one request, given its own fields."""


class HttpSpeaker:
    """Speaks through ``POST {url}/v1/audio/speech``, streamed as raw samples.

    Args:
        url: Base address, without ``/v1``.
        body: Fields that all requests share.
        rate_hz: Rate of the samples, where the server's headers do not say it.
        key: API key.
    """

    def __init__(self, url: str, body: dict[str, Any], rate_hz: int = 24_000, key: str = "none") -> None:
        self._body = {"response_format": "pcm", "stream": True} | body
        self._rate_hz = rate_hz
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=600,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            headers={"authorization": f"Bearer {key}"},
        )

    async def __call__(self, fields: dict[str, Any]) -> Call:
        """Render one request."""
        call = Call(time.perf_counter())
        try:
            async with self._client.stream("POST", "/v1/audio/speech", json=self._body | fields) as answer:
                if answer.status_code != 200:
                    told = (await answer.aread())[:200].decode(errors="replace")
                    raise RuntimeError(f"{answer.status_code}: {told}")
                rate_hz = int(answer.headers.get("x-voxr-sample-rate", self._rate_hz))
                header = _WAV_HEADER if self._body["response_format"] == "wav" else 0
                async for data in answer.aiter_raw():
                    sound = max(0, len(data) - header)
                    header -= len(data) - sound
                    call.player.take(sound / 2 / rate_hz, time.perf_counter())
        except (httpx.HTTPError, RuntimeError) as error:
            call.error = f"{type(error).__name__}: {error}"
        call.ended_s = time.perf_counter()
        return call

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def closed_loop(speak: Speak, requests: list[dict[str, Any]], users: int, told: Callable[[], Any]) -> list[Call]:
    """So many users, each of whom asks again when the answer is complete."""
    waiting = list(reversed(requests))
    calls: list[Call] = []

    async def user() -> None:
        while waiting:
            calls.append(await speak(waiting.pop()))
            told()

    await asyncio.gather(*(user() for _ in range(users)))
    return calls


async def open_loop(
    speak: Speak, requests: list[dict[str, Any]], gaps_s: list[float], told: Callable[[], Any]
) -> list[Call]:
    """Requests that come when they come, whatever became of those before.

    Args:
        speak: Renders one.
        requests: In order.
        gaps_s: Seconds before each.
        told: Called when one is complete.
    """

    async def one(fields: dict[str, Any], start_s: float) -> Call:
        await asyncio.sleep(max(0.0, start_s - time.perf_counter()))
        call = await speak(fields)
        told()
        return call

    start_s = time.perf_counter()
    tasks = []
    for fields, gap_s in zip(requests, gaps_s, strict=True):
        start_s += gap_s
        tasks.append(asyncio.ensure_future(one(fields, start_s)))
    return list(await asyncio.gather(*tasks))


def summary(calls: list[Call], wall_s: float) -> dict[str, Any]:
    """One line of the table."""
    good = [call for call in calls if not call.error]
    audio_s = sum(call.player.audio_s for call in good)
    return {
        "requests": len(calls),
        "failed": len(calls) - len(good),
        "first audio p50, ms": quantile((call.ttfa_s for call in good), 0.5) * 1e3,
        "first audio p95, ms": quantile((call.ttfa_s for call in good), 0.95) * 1e3,
        "RTF p50": quantile((call.rtf for call in good), 0.5),
        "audio s/s": audio_s / wall_s,
        "underruns": sum(call.player.underruns for call in good),
        "silence, s": sum(call.player.silence_s for call in good),
    }


def shared_fields(text: str) -> dict[str, Any]:
    """Fields given as JSON on the command line."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise TypeError(f"fields must be a JSON object, not {text!r}")
    return fields
