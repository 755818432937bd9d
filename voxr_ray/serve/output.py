"""What leaves a router with an answer: its headers, and the events of a stream. Pure functions.

The events are OpenAI's: ``speech.audio.delta`` with a piece of the file in base64, in the end ``speech.audio.done``
with what was used. A failure on the way is an ``error`` event, which OpenAI's client raises as an error; the
connection breaks after it all the same, for a client that reads no events must not take the end for a clean one.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from voxr_ray.encode import AudioFormat
from voxr_ray.errors import VoxrError
from voxr_ray.messages import Summary
from voxr_ray.serve.http_errors import body_of

EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class SpokenFile:
    """A whole answer.

    Attributes:
        data: The file.
        audio_format: Its format.
        rate_hz: Its rate.
        seconds: Length of the audio.
        summary: How it was made.
    """

    data: bytes
    audio_format: AudioFormat
    rate_hz: int
    seconds: float
    summary: Summary


def audio_headers(model: str, seed: int, rate_hz: int, audio_format: AudioFormat, notice: str | None) -> dict[str, str]:
    """Headers of every answer with audio."""
    headers = {
        "x-voxr-model": header_text(model),
        "x-voxr-seed": str(seed),
        "x-voxr-sample-rate": str(rate_hz),
        "x-voxr-channels": "1",
        "x-voxr-encoding": audio_format.encoding,
    }
    if notice:
        headers["x-voxr-notice"] = header_text(notice)
    return headers


def file_headers(file: SpokenFile, model: str, notice: str | None) -> dict[str, str]:
    """Headers of a whole answer."""
    summary = file.summary
    return audio_headers(model, summary.seed, file.rate_hz, file.audio_format, notice) | {
        "x-voxr-stop-reason": summary.stop_reason,
        "x-voxr-takes": str(summary.takes),
        "x-voxr-audio-seconds": f"{file.seconds:.3f}",
    }


def usage(summary: Summary) -> dict[str, int]:
    """What an answer used: tokens of text in, patches of audio out."""
    return {
        "input_tokens": summary.text_tokens,
        "output_tokens": summary.patches,
        "total_tokens": summary.text_tokens + summary.patches,
    }


def delta_event(data: bytes) -> bytes:
    """The event that carries a piece of the file."""
    return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})


def done_event(summary: Summary) -> bytes:
    """The event that ends a whole stream."""
    return _event({"type": "speech.audio.done", "usage": usage(summary)})


def error_event(error: VoxrError) -> bytes:
    """The event that says why a stream breaks off."""
    return b"event: error\n" + _event({"type": "error", **body_of(error)})


def _event(value: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def header_text(text: str) -> str:
    """Text as a header can carry it."""
    return " ".join(text.encode("ascii", "replace").decode().split())
