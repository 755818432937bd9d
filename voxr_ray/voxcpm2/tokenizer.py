"""Text to token ids as the official package makes them.

Source: OpenBMB/VoxCPM, ``mask_multichar_chinese_tokens``. Tokens of two or more Han characters are split into
characters; no token marks the beginning.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from voxr_ray.errors import CheckpointError, InvalidRequest

WORD_START = "▁"
_SPACES = re.compile(r"\s+")
_REMEMBERED, _REMEMBERED_CHARS = 512, 4096
"""Latest texts whose tokens are kept, and the longest of them: a few megabytes."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def collapse_spaces(text: str) -> str:
    """Every run of white space becomes one space; the ends are kept.

    Source: OpenBMB/VoxCPM, ``VoxCPM._generate``.
    """
    return _SPACES.sub(" ", text)


def _is_han(token: str) -> bool:
    return all("\u4e00" <= character <= "\u9fff" for character in token)


class TextTokenizer:
    """Thread-safe tokenizer of one checkpoint.

    Text never becomes one of the tokenizer's added tokens: they are taken out of the matcher, so that a text that
    spells ``<|audio_start|>`` is tokenized like any other.

    Args:
        path: ``tokenizer.json``.

    Raises:
        CheckpointError: The file is missing or not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            spec: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            added = spec.get("added_tokens") or []
            # Byte tokens are how a byte-fallback tokenizer writes what it has no piece for: they are text.
            self._reserved = frozenset(
                int(token["id"]) for token in added if token.get("special") and not _BYTE.fullmatch(token["content"])
            )
            self._tokenizer = Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))
        except OSError as err:
            raise CheckpointError(f"cannot read {path}: {err.strerror or err}") from err
        except Exception as err:  # tokenizers raises bare Exception for whatever it cannot parse
            raise CheckpointError(f"{path} is not a tokenizer: {err}") from err
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        self._ids = vocabulary
        self._han_words = frozenset(token for token in vocabulary if len(token) >= 2 and _is_han(token))
        unknown = (spec.get("model") or {}).get("unk_token")
        self._unknown: int | None = vocabulary.get(str(unknown))
        # A long text is counted part by part before its first part is rendered, and each part is planned again when its
        # turn comes. A tokenizer that spells words out takes milliseconds for a line.
        self._remembered = lru_cache(_REMEMBERED)(self._encode)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, as it stands.

        Raises:
            InvalidRequest: The text holds something this tokenizer has no token for, or a reserved one for.
        """
        return list(self._remembered(text)) if len(text) <= _REMEMBERED_CHARS else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        for token, number in zip(encoding.tokens, encoding.ids, strict=True):
            bare = token.replace(WORD_START, "")
            if bare in self._han_words:
                ids.extend(self._character(character) for character in bare)
            else:
                ids.append(number)
        reserved = self._reserved.intersection(ids) - {self._unknown}
        if reserved:
            raise InvalidRequest(f"the text spells the reserved token {min(reserved)}; write it otherwise")
        return ids

    def _character(self, character: str) -> int:
        number = self._ids.get(character, self._unknown)
        if number is None:
            raise InvalidRequest(f"the tokenizer has no token for {character!r}")
        return number
