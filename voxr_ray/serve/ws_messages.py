"""The messages of a speech session, read and checked. Pure functions.

The names are those of vllm-omni's ``/v1/audio/speech/stream``. A configuration has the fields of a speech request
(:class:`~voxr_ray.serve.http_schema.SpeechBody`) without its text, so both mean the same and are checked in one place.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from voxr_ray.config import Settings
from voxr_ray.errors import InvalidRequest, TooLarge, VoxrError
from voxr_ray.serve.http_errors import code_of, from_validation
from voxr_ray.serve.speech_body import refuse_repeats

_NOT_IN_A_SESSION = ("input", "stream", "stream_format", "sample_rate")
_DEFAULT_FORMAT = "wav"
"""What a session speaks in unless it says otherwise: an answer's default, mp3, is none of its formats."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Config(BaseModel):
    """Voice, format and parameters of what is spoken from now on."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    type: Literal["session.config"]
    stream_audio: bool | None = None
    """Several frames a sentence, sent as they are made. Unset: for raw PCM; otherwise one frame, a whole file."""
    max_unread_bytes: Annotated[int, Field(ge=4096, le=2**30)] | None = None
    """Audio that may be under way, for clients that confirm with ``audio.read``."""

    def body(self) -> bytes:
        """The speech request this configures, around a text that stands for all texts."""
        fields = dict(self.model_extra or {})
        for name in _NOT_IN_A_SESSION:
            if name in fields:
                raise InvalidRequest(f"{name} is no field of session.config", param=name)
        if fields.get("response_format") is None:
            fields["response_format"] = _DEFAULT_FORMAT
        return json.dumps(fields | {"input": "a", "stream": True}).encode()


class Text(_Message):
    """More text; cut anywhere, also inside a word."""

    type: Literal["input.text"]
    text: str


class Flush(_Message):
    """Speak what has arrived, though it is no whole sentence."""

    type: Literal["input.flush"]


class Done(_Message):
    """The utterance is complete: speak the rest of it, then say so."""

    type: Literal["input.done"]


class Cancel(_Message):
    """Stop speaking, and forget what has not been spoken."""

    type: Literal["input.cancel"]


class Read(_Message):
    """How many bytes of audio the client has read since the session began."""

    type: Literal["audio.read"]
    bytes: Annotated[int, Field(ge=0, le=2**60)]


Message = Annotated[Config | Text | Flush | Done | Cancel | Read, Field(discriminator="type")]


def parse_message(text: str, settings: Settings) -> Config | Text | Flush | Done | Cancel | Read:
    """Read a message of a client.

    Raises:
        InvalidRequest: It is none.
        TooLarge: It is over the limit on bodies.
    """
    if len(text) > settings.max_body_bytes:
        raise TooLarge(f"the message has {len(text)} characters; at most {settings.max_body_bytes} are accepted")
    adapter: TypeAdapter[Config | Text | Flush | Done | Cancel | Read] = TypeAdapter(Message)
    try:
        message = adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"].startswith("union_tag"):
            raise InvalidRequest(
                "a message has one of the types session.config, input.text, input.flush, input.done, input.cancel and "
                "audio.read",
                param="type",
            ) from error
        # The first place is the message's type.
        raise from_validation(error, "the message", skip=1, names={}) from error
    refuse_repeats(text)
    return message


def error_message(error: VoxrError, sentence_index: int | None = None) -> dict[str, Any]:
    """The ``error`` message that says what an error answer over HTTP would."""
    made = {"type": "error", "message": error.message, "code": code_of(error), "param": error.param}
    return made if sentence_index is None else made | {"sentence_index": sentence_index}
