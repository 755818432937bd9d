"""What ``/openapi.json`` says of the HTTP surface: every field, every answer, every error.

Constants and pure functions. Bodies are read and checked by hand, so FastAPI cannot know their fields nor what an
answer looks like; both are described here from the same classes and tables that do the work.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from voxr_ray.encode import AudioFormat
from voxr_ray.messages import SynthRequest
from voxr_ray.serve.batch import SHARED_FIELDS, BatchBody
from voxr_ray.serve.board import MOST_STEPS
from voxr_ray.serve.http_errors import error_table
from voxr_ray.serve.output import EVENT_STREAM
from voxr_ray.serve.speech_body import SpeechBody

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NUMBER = {"type": "number"}
_LIMITS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_COUNT = {"type": "integer", "minimum": 0}

_ERROR = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT},
        }
    },
}

_USAGE = {
    "type": "object",
    "required": ["input_tokens", "output_tokens", "total_tokens"],
    "properties": {"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT},
    "description": "Tokens of text, patches of audio, and their sum.",
}

_AUDIO_HEADERS = {
    "x-voxr-model": ("Name of the model.", _TEXT),
    "x-voxr-seed": ("Seed that was used: equal requests with it sound equal.", _TEXT),
    "x-voxr-sample-rate": ("Rate in Hz.", _TEXT),
    "x-voxr-channels": ("Number of channels: 1.", _TEXT),
    "x-voxr-encoding": ("s16le, or the codec.", _TEXT),
    "x-voxr-notice": ("What callers should know of this checkpoint, if anything.", _TEXT),
    "x-voxr-stop-reason": ("Whole answers: why the take ended, stop or length.", _TEXT),
    "x-voxr-takes": ("Whole answers: takes made.", _TEXT),
    "x-voxr-audio-seconds": ("Whole answers: length of the audio.", _TEXT),
}

EXPOSED_HEADERS = ["x-request-id", "retry-after", *_AUDIO_HEADERS]
"""Headers a web page of another origin may read."""


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    table = error_table()
    return {
        status: {
            "description": "Error, by code: " + ", ".join(code for each, _, code in table if each == status),
            "content": {"application/json": {"schema": _ERROR}},
        }
        for status in statuses
    }


def _answer(description: str, schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": description, "content": {"application/json": {"schema": schema}}}}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class _NumbersOnly(GenerateJsonSchema):
    """Passes over what no JSON can hold, such as arrays of samples."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> dict[str, Any]:
        return {}


def _speech_schema() -> dict[str, Any]:
    """The fields of a speech request, with the limits their values meet later."""
    schema = SpeechBody.model_json_schema()
    limits = SynthRequest.model_json_schema(schema_generator=_NumbersOnly)["properties"]
    for name, field in schema["properties"].items():
        # Of an optional parameter the limits stand in the first of its alternatives.
        known = limits.get(name, {})
        known = known.get("anyOf", [known])[0]
        field |= {key: known[key] for key in _LIMITS if key in known}
    return schema


def _batch_schema() -> dict[str, Any]:
    speech = _speech_schema()
    fields = {name: speech["properties"][name] for name in ("input", *SHARED_FIELDS)}
    item = {"type": "object", "required": ["input"], "additionalProperties": False, "properties": fields}
    schema = BatchBody.model_json_schema()
    schema["additionalProperties"] = False
    schema["properties"]["items"] |= {"items": item, "minItems": 1}
    schema["properties"] |= {name: fields[name] for name in SHARED_FIELDS}
    return schema


_CARD = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "sample_rate"],
    "properties": {
        "id": _TEXT,
        "object": {"const": "model"},
        "created": _COUNT,
        "owned_by": _TEXT,
        "sample_rate": _COUNT,
        "notice": _TEXT,
    },
}

_RESULT = {
    "type": "object",
    "required": ["index", "status", "audio_data", "media_type", "error"],
    "properties": {
        "index": _COUNT,
        "status": {"enum": ["success", "error"]},
        "audio_data": _TEXT_OR_NULL | {"description": "The file in base64, or null after an error."},
        "media_type": _TEXT_OR_NULL,
        "sample_rate": _COUNT,
        "audio_seconds": _NUMBER,
        "seed": _COUNT,
        "takes": _COUNT,
        "stop_reason": {"enum": ["stop", "length"]},
        "usage": _USAGE,
        "error": {"anyOf": [_ERROR["properties"]["error"], {"type": "null"}]},  # type: ignore[index]
    },
}

_BATCH_ANSWER = {
    "type": "object",
    "required": ["id", "object", "results", "total", "succeeded", "failed"],
    "properties": {
        "id": _TEXT,
        "object": {"const": "audio.speech.batch"},
        "results": {"type": "array", "items": _RESULT},
        "total": _COUNT,
        "succeeded": _COUNT,
        "failed": _COUNT,
    },
}

_AUDIO = {
    200: {
        "description": "The audio; with stream_format sse, events that carry it.",
        "headers": {name: {"description": text, "schema": schema} for name, (text, schema) in _AUDIO_HEADERS.items()},
        "content": {each.media_type: {"schema": {"type": "string", "format": "binary"}} for each in AudioFormat}
        | {EVENT_STREAM: {"schema": _TEXT}},
    }
}

_FAILURES = (500, 503)

SPEECH: dict[str, Any] = {
    "openapi_extra": _body(_speech_schema()),
    "response_class": Response,
    "responses": _AUDIO | _errors(400, 401, 404, 408, 413, 415, *_FAILURES),
}

BATCH: dict[str, Any] = {
    "openapi_extra": _body(_batch_schema()),
    "response_class": Response,
    "responses": _answer("A result or an error for each item.", _BATCH_ANSWER)
    | _errors(400, 401, 408, 413, 415, *_FAILURES),
}

MODELS: dict[str, Any] = {
    "responses": _answer("The models.", {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _CARD}},
    })
    | _errors(401, *_FAILURES)
}  # fmt: skip

MODEL: dict[str, Any] = {"responses": _answer("The model.", _CARD) | _errors(401, 404, *_FAILURES)}

HEALTH: dict[str, Any] = {
    "responses": _answer("A replica answers.", {
        "type": "object",
        "required": ["status", "model"],
        "properties": {"status": {"const": "ok"}, "model": _TEXT},
    })
    | _errors(*_FAILURES)
}  # fmt: skip

_SAMPLER = {
    "type": ["object", "null"],
    "required": ["cfg_value", "inference_timesteps"],
    "properties": {"cfg_value": _NUMBER, "inference_timesteps": _COUNT},
}

_STEP = {
    "type": "object",
    "description": "A step: when it began, on the clock of now_s, and what it computed.",
    "required": ["started_s", "step_ms", "decode_ms", "gap_ms", "width", "slots", "sampler", "waiting", "held"],
    "properties": dict.fromkeys(("started_s", "step_ms", "decode_ms", "gap_ms"), _NUMBER)
    | dict.fromkeys(("width", "seatings", "waiting", "held", "pieces"), _COUNT)
    | {"slots": {"type": "array", "items": _COUNT}, "sampler": _SAMPLER},
}

_REPLICA = {
    "type": "object",
    "required": ["id", "host", "running", "now_s", "width", "slots", "rows", "waiting", "held", "counts", "steps"],
    "properties": dict.fromkeys(("id", "host"), _TEXT)
    | dict.fromkeys(("now_s", "progress_age_s", "patch_s"), _NUMBER)
    | dict.fromkeys(("width", "capacity", "rows", "seatings", "waiting", "held", "encodes", "inside"), _COUNT)
    | dict.fromkeys(("sampler", "next_sampler"), _SAMPLER)
    | {
        "counts": {"type": "object"},
        "cache": {"type": "object"},
        "running": {"type": "boolean"},
        "slots": {"type": "array", "items": _COUNT},
        "steps": {"type": "array", "items": _STEP},
    },
}

BOARD: dict[str, Any] = {
    "openapi_extra": {
        "parameters": [
            {
                "name": "steps",
                "in": "query",
                "description": "Latest steps of each replica, 128 unless given.",
                "schema": {"type": "integer", "minimum": 0, "maximum": MOST_STEPS},
            }
        ]
    },
    "responses": _answer("What every replica is doing.", {
        "type": "object",
        "required": ["object", "replicas", "silent"],
        "properties": {
            "object": {"const": "board"},
            "replicas": {"type": "array", "items": _REPLICA},
            "silent": _COUNT | {"description": "Replicas that did not answer in time."},
        },
    })
    | _errors(400, 401, *_FAILURES)
}  # fmt: skip


_VOICE = {
    "type": "object",
    "required": ["id", "name", "object"],
    "properties": {
        "id": _TEXT,
        "name": _TEXT,
        "object": {"const": "audio.voice"},
        "created_at": _COUNT,
        "has_transcript": {"type": "boolean"},
    },
}

_UPLOAD = {
    "type": "object",
    "required": ["name", "audio_sample"],
    "additionalProperties": False,
    "properties": {
        "name": _TEXT
        | {
            "description": "Its name, also its id: 1 to 64 letters, digits, '-', '_' and inner spaces. "
            "Capitals make no difference."
        },
        "audio_sample": {
            "type": "string",
            "format": "binary",
            "description": "Recording of 1 to 60 seconds, up to 10 MiB: wav, flac, mp3, ogg, m4a, aac or webm.",
        },
        "ref_text": _TEXT | {"description": "What the recording says; speech then continues from it."},
        "consent": _TEXT | {"description": "Kept with the voice."},
    },
}

VOICES: dict[str, Any] = {
    "responses": _answer("Voices that requests may name, the model's own first.", {
        "type": "object",
        "required": ["object", "voices"],
        "properties": {"object": {"const": "list"}, "voices": {"type": "array", "items": _VOICE}},
    })
    | _errors(401, *_FAILURES)
}  # fmt: skip

ADD_VOICE: dict[str, Any] = {
    "openapi_extra": {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}},
    },
    "responses": _answer("The voice that was stored.", _VOICE) | _errors(400, 401, 408, 409, 413, 415, *_FAILURES),
}

DELETE_VOICE: dict[str, Any] = {
    "responses": _answer("The voice that is gone.", {
        "type": "object",
        "required": ["object", "id", "name", "deleted"],
        "properties": {
            "object": {"const": "audio.voice"}, "id": _TEXT, "name": _TEXT, "deleted": {"const": True},
        },
    })
    | _errors(400, 401, 404, *_FAILURES)
}  # fmt: skip


class DescribedApp(FastAPI):
    """A FastAPI application whose description says what it does and nothing else.

    Args:
        **options: Those of FastAPI.
    """

    def __init__(self, **options: Any) -> None:
        # The pages FastAPI has for a description load scripts from elsewhere.
        pages = {"docs_url": None, "redoc_url": None}
        super().__init__(title="voxr_ray", description="VoxCPM2 text-to-speech", **(pages | options))

    def openapi(self) -> dict[str, Any]:
        """The description, without the answers that FastAPI assumes and this server never gives."""
        if self.openapi_schema is None:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
                    if "401" in operation["responses"]:
                        operation["security"] = [{"bearer": []}, {}]
            components = document.setdefault("components", {})
            for name in ("HTTPValidationError", "ValidationError"):
                components.get("schemas", {}).pop(name, None)
            components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        return self.openapi_schema or {}
