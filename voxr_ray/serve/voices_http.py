"""The HTTP surface of voices: list, add, delete.

Runs on a router's event loop. A recording is bounded while it arrives, and few uploads are held at a time: the others
wait with their bodies unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from voxr_ray.errors import BadAudio, Cancelled, InvalidRequest
from voxr_ray.serve import openapi
from voxr_ray.serve.bodies import LEFT
from voxr_ray.serve.http_errors import BodyTooLarge, RequestTimeout, UnsupportedMediaType
from voxr_ray.serve.values import VoiceInfo
from voxr_ray.serve.voice_names import DEFAULT_VOICE
from voxr_ray.serve.voice_store import MAX_VOICE_BYTES
from voxr_ray.serve.voices import Voices

_AT_ONCE = 8
_MOST_PARTS = 16
_MAX_BODY_BYTES = MAX_VOICE_BYTES + 64 * 1024
_TEXTS = ("name", "ref_text", "consent")
_FILE = "audio_sample"


def add_voice_routes(app: FastAPI, voices: Voices, timeout_s: float) -> None:
    """Serve the voices.

    Args:
        app: Gets the routes.
        voices: Where they are kept.
        timeout_s: Seconds an upload may take.
    """
    uploads = asyncio.Semaphore(_AT_ONCE)

    @app.get("/v1/audio/voices", **openapi.VOICES)
    async def list_voices() -> dict[str, Any]:
        """Voices that requests may name, the model's own first."""
        default = {"id": DEFAULT_VOICE, "name": DEFAULT_VOICE, "object": "audio.voice"}
        return {"object": "list", "voices": [default, *(_card(voice) for voice in await voices.list())]}

    @app.post("/v1/audio/voices", **openapi.ADD_VOICE)
    async def add_voice(request: Request) -> dict[str, Any]:
        """Store a recording as a voice."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "multipart/form-data":
            raise UnsupportedMediaType(f"content-type is {media_type[:60]!r}; multipart/form-data is needed")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > _MAX_BODY_BYTES:
            raise _too_large()
        async with uploads:
            try:
                async with asyncio.timeout(timeout_s):
                    texts, audio = await _read_form(request)
            except TimeoutError as error:
                raise RequestTimeout("the upload did not arrive within the time a request may take") from error
            return _card(await voices.add(texts["name"], audio, texts.get("ref_text"), texts.get("consent")))

    @app.delete("/v1/audio/voices/{name}", **openapi.DELETE_VOICE)
    async def delete_voice(name: str) -> dict[str, Any]:
        """Remove a voice."""
        voice = await voices.delete(name)
        return {"object": "audio.voice", "id": voice.name, "name": voice.name, "deleted": True}


def _card(voice: VoiceInfo) -> dict[str, Any]:
    return {"id": voice.name, "name": voice.name, "object": "audio.voice", "created_at": voice.created_at_s,
            "has_transcript": voice.has_text}  # fmt: skip


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the upload is larger than a recording may be, {MAX_VOICE_BYTES} bytes", param=_FILE)


async def _read_form(request: Request) -> tuple[dict[str, str], bytes]:
    """The texts and the recording of an upload."""

    async def bounded() -> AsyncGenerator[bytes, None]:
        received = 0
        async for part in request.stream():
            received += len(part)
            if received > _MAX_BODY_BYTES:
                raise _too_large()
            yield part

    # Its refusals name no field, those below do; what it holds is bounded above.
    parser = MultiPartParser(
        request.headers, bounded(), max_files=_MOST_PARTS, max_fields=_MOST_PARTS, max_part_size=_MAX_BODY_BYTES
    )
    try:
        form = await parser.parse()
    except LEFT as error:
        raise Cancelled("the caller left while sending the recording") from error
    except (MultiPartException, KeyError, UnicodeDecodeError) as error:
        reason = getattr(error, "message", "") or "it is damaged"
        raise InvalidRequest(f"the multipart form cannot be read: {reason[:200]}") from error
    try:
        return await _fields(form)
    finally:
        await form.close()


async def _fields(form: FormData) -> tuple[dict[str, str], bytes]:
    texts: dict[str, str] = {}
    audio: bytes | None = None
    for field, value in form.multi_items():
        if field not in (*_TEXTS, _FILE):
            raise InvalidRequest(f"unknown field {field[:80]!r}", param=field[:80])
        if field in texts or (field == _FILE and audio is not None):
            raise InvalidRequest(f"{field} is given twice", param=field)
        if isinstance(value, UploadFile) != (field == _FILE):
            kind = "a file" if field == _FILE else "text"
            raise InvalidRequest(f"{field} must be sent as {kind}", param=field)
        if isinstance(value, UploadFile):
            audio = await value.read()
        else:
            texts[field] = value
    if "name" not in texts:
        raise InvalidRequest("name is missing", param="name")
    if audio is None:
        raise InvalidRequest(f"{_FILE} is missing", param=_FILE)
    if not audio:
        raise BadAudio("the recording is empty", param=_FILE)
    return texts, audio
