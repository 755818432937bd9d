"""Where settings come from: arguments of the application and environment variables, either of which may be text.

Text is read as JSON wherever a field is not text itself; whether a value is allowed is for the settings to say.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from voxr_ray.errors import ConfigurationError

ENVIRONMENT_PREFIX = "VOXR_"

_TEXT_FIELDS = frozenset({"model", "model_name", "device", "dtype", "api_keys_file", "voices_dir"})
_LIST_FIELDS = frozenset({"model_aliases", "api_keys", "cors_origins", "allowed_audio_hosts", "allowed_audio_folders"})


def collect(args: Mapping[str, Any], environ: Mapping[str, str], known: Collection[str]) -> dict[str, Any]:
    """What was given for each field, as it was given: arguments before environment variables.

    Args:
        args: Values by field name.
        environ: Environment variables; those named ``VOXR_…`` count, unless they are empty.
        known: Names of all fields.

    Raises:
        ConfigurationError: A name is unknown. One line.
    """
    given: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and text != "":
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name not in known or variable != variable.upper():
                raise ConfigurationError(f"environment variable {variable} is no setting; {_alike(name, known)}")
            given[name] = text
    for name, value in args.items():
        if name not in known:
            raise ConfigurationError(f"{name!r} is no setting; {_alike(name, known)}", param=str(name))
        given[name] = value
    return given


def read(name: str, value: Any) -> Any:
    """Read text as JSON where the field is not text; what is no JSON stays for validation to complain about."""
    if not isinstance(value, str):
        return value
    if name in _TEXT_FIELDS:
        return None if value == "null" and name in ("model_name", "api_keys_file") else value
    lowered = value.strip().lower()
    if name in _LIST_FIELDS and not lowered.startswith("["):
        # Empty parts stay, to be refused: a list of keys that turned out empty would open the server to everybody.
        return [] if lowered in ("null", "none") else [part.strip() for part in value.split(",")]
    try:
        return json.loads(lowered if lowered in ("true", "false", "none", "null") else value)
    except ValueError:
        return None if lowered == "none" else value


def _alike(name: str, known: Collection[str]) -> str:
    """What to try instead of an unknown name: the ones like it, or all."""
    alike = difflib.get_close_matches(str(name), known, n=3)
    return f"is it {' or '.join(alike)}?" if alike else "known are " + ", ".join(known)
