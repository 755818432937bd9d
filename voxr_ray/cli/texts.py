"""Where the text to speak comes from: the command line, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from voxr_ray.errors import InvalidRequest

_TEXT_SUFFIXES = (".txt", ".md", ".text")


def read_text(given: str) -> str:
    """The text that an argument means: ``-`` is standard input, the path of a file that file, the rest itself.

    Raises:
        InvalidRequest: There is no such file, or it is no UTF-8 text, or it says nothing.
    """
    if given == "-":
        text, where = _decoded(sys.stdin.buffer.read(), "standard input"), "standard input"
    elif (path := _file(given)) is not None:
        text, where = _decoded(path.read_bytes(), str(path)), str(path)
    else:
        if given.endswith(_TEXT_SUFFIXES) and not any(character.isspace() for character in given):
            raise InvalidRequest(f"there is no file {given}")
        text, where = given, "the text"
    if not text.strip():
        raise InvalidRequest(f"{where} is blank: there is nothing to speak")
    return text


def _file(given: str) -> Path | None:
    path = Path(given)
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):  # too long for a name, or with a zero in it: a text
        return None


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{where} is no UTF-8 text: byte {error.start} is {data[error.start]:#04x}") from error
