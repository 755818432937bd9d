"""What a voice may be called, so that a name can never leave the voices' folder. Pure functions.

A name is also the stem of a file, on file systems that may or may not tell capitals apart. So it is plain ASCII, has
no dot and no separator, and two names that differ in case alone are the same voice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from voxr_ray.errors import InvalidRequest, UnknownVoice

DEFAULT_VOICE = "default"
"""The model's own choice of a voice; no recording can have this name."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 _-]{0,62}[A-Za-z0-9_-])?")
_SHOWN = 10


def is_name(name: str) -> bool:
    """Whether a recording may be called that."""
    return _NAME.fullmatch(name) is not None and key_of(name) != DEFAULT_VOICE


def key_of(name: str) -> str:
    """What two names of the same voice have in common."""
    return name.lower()


def check_name(name: str) -> str:
    """The name of a new voice.

    Raises:
        InvalidRequest: It cannot be one.
    """
    if key_of(name) == DEFAULT_VOICE:
        raise InvalidRequest(f"{name!r} is the model's own voice: choose another name", param="name")
    if not is_name(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a voice: 1 to 64 letters, digits, '-', '_' and inner spaces (ASCII), beginning "
            "with a letter or digit",
            param="name",
        )
    return name


def unknown_voice(name: str, known: Iterable[str], param: str = "voice") -> UnknownVoice:
    """The error for a name that is no voice; it shows some that are."""
    names = sorted(known, key=key_of)
    shown = ", ".join([DEFAULT_VOICE, *names[:_SHOWN]])
    more = f" and {len(names) - _SHOWN} more (GET /v1/audio/voices)" if len(names) > _SHOWN else ""
    return UnknownVoice(f"no voice is named {name[:80]!r}; known are {shown}{more}", param=param)
