"""The fields of ``POST /v1/audio/speech``: their names, types and descriptions.

What they mean together is :mod:`voxr_ray.serve.http_schema`'s matter.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from voxr_ray.encode import SAMPLE_RATES_HZ, AudioFormat
from voxr_ray.errors import InvalidRequest
from voxr_ray.serve.spelling import LANGUAGES

STREAM_FORMATS = ("audio", "sse")


def _shown(**schema: Any) -> Any:
    """Limits that the description of a field shows; they are checked elsewhere, with messages of their own."""
    return Field(json_schema_extra=schema)


def refuse_repeats(body: bytes | str) -> None:
    """Refuse JSON in which an object has a name twice: which of the values is meant, readers do not agree on.

    Args:
        body: Valid JSON.

    Raises:
        InvalidRequest: A name is repeated.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidRequest(f"{name[:80]} is given twice", param=name[:80])
            seen.add(name)

    json.loads(body, object_pairs_hook=check, parse_int=str)  # numbers of any length


def _voice_name(value: Any) -> Any:
    """``"alloy"`` and ``{"id": "alloy"}`` name the same voice."""
    if isinstance(value, dict):
        if set(value) != {"id"}:
            raise ValueError('give a name or {"id": name}')
        return value["id"]
    return value


_VOICE = [
    {"type": ["string", "null"]},
    {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False},
]


_NORMALIZE = [{"type": ["boolean", "null"]}, {"type": "string", "enum": [*LANGUAGES]}]


class SpeechBody(BaseModel):
    """Fields of a speech request. ``null`` means unset for all but ``input``; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    input: Annotated[str, _shown(minLength=1)]
    """Text to speak. It is spoken as it stands, leading brackets included. Long texts are spoken part by part."""
    model: str | None = None
    """Name of the served model, as in ``/v1/models``. Unset: that one."""
    voice: Annotated[str | None, BeforeValidator(_voice_name), _shown(anyOf=_VOICE)] = None
    """Name of a stored voice, or ``{"id": name}``. Unset or ``default``: the model's own choice. Not with
    ``ref_audio``."""
    response_format: Annotated[str | None, _shown(enum=[*AudioFormat, None])] = None
    """``mp3`` (default), ``opus``, ``aac``, ``flac``, ``wav``, or ``pcm`` (16-bit little-endian mono; the headers name
    the rate)."""
    sample_rate: Annotated[int | None, _shown(enum=[*SAMPLE_RATES_HZ, None])] = None
    """Rate of the answer in Hz. Unset: the model's own. ``opus`` carries 8000, 12000, 16000, 24000 and 48000."""
    stream: bool | None = None
    """Send audio while it is made. Unset: false, the whole answer at once, unless ``stream_format`` is ``sse``."""
    stream_format: Annotated[str | None, _shown(enum=[*STREAM_FORMATS, None])] = None
    """``audio`` (default): the bytes of the file. ``sse``: server-sent events while the audio is made."""
    speed: Annotated[FiniteFloat | None, _shown(enum=[1.0, None])] = None
    """1.0, the only one: the model has no notion of speed."""
    instructions: str | None = None
    """How to speak, in words. Never spoken; not together with a transcript."""
    seed: int | None = None
    """Seed of the noise, 0 to 2^63-1: equal requests with equal seeds sound equal. Unset: a drawn one."""
    cfg_value: FiniteFloat | None = None
    """Guidance scale, 0 to 10."""
    inference_timesteps: int | None = None
    """Euler steps a patch, 2 to 100."""
    min_len: int | None = None
    """Patch index above which a stop counts, in each part of a long text. Not above ``max_len``."""
    max_len: int | None = None
    """Most patches of a take: of each part of a long text, not of all of it."""
    retry_badcase: bool | None = None
    """Make suspiciously long takes again. Not when streaming."""
    retry_badcase_max_times: int | None = None
    """Most takes in all, 1 to 10. Not when streaming."""
    retry_badcase_ratio_threshold: FiniteFloat | None = None
    """Patches per text token from which a take counts as bad; it bounds every take."""
    normalize: Annotated[bool | str | None, _shown(anyOf=_NORMALIZE)] = None
    """Spell out numbers, dates, money and abbreviations first: true to tell the language from the script, or ``en``,
    ``zh`` or ``ja``. Unset: false."""
    ref_audio: str | None = None
    """Recording of a voice to imitate: base64, or a data URI."""
    ref_text: str | None = None
    """What ``ref_audio`` says. With it the clip is also continued from, before ``prompt_audio`` if both are given."""
    prompt_audio: str | None = None
    """Recording to continue from: base64, or a data URI. Needs ``prompt_text``."""
    prompt_text: str | None = None
    """What ``prompt_audio`` says."""
