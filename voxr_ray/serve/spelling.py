"""Numbers, dates, money and abbreviations in words, by WeText, the library VoxCPM's own package uses for it.

Its grammars cover English, Chinese and Japanese. It is an extra (``pip install 'voxr_ray[normalize]'``, 50 MB), so it
is imported by the first text that needs it. Runs on worker threads: a sentence takes about ten milliseconds.

Three of its ways are kept from callers. It fails on characters it does not know: such a piece stays as it was. It
puts a backslash before quotation marks: they are taken out of the text first. Its time grows faster than the text: it
is given a sentence at a time, and a long sentence in pieces.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from voxr_ray.errors import InvalidRequest
from voxr_ray.serve.split import tidy, within
from voxr_ray.serve.text import is_speakable

Language: TypeAlias = Literal["en", "zh", "ja"]

LANGUAGES: tuple[Language, ...] = ("en", "zh", "ja")
"""What there are grammars for."""

_PACKAGE = "wetext"
_PIECE = 160
"""Weight of the longest piece: at most a tenth of a second of work, also for a page of digits."""

_KANA = re.compile(r"[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9d]")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_LETTER = re.compile(r"[^\W\d_]")
_QUOTED = re.compile(r"[\"\\\n]+")
_PLAIN = re.compile(r"[^\W\d_]+(?:[\s,;:!?'’…—–-]+[^\W\d_]+)*[\s.,;:!?'’…—–-]*")
"""Words with ordinary punctuation between them: nothing to spell out, so they are left alone."""

_log = logging.getLogger(__name__)


def is_installed() -> bool:
    """Whether the library is there."""
    return importlib.util.find_spec(_PACKAGE) is not None


def can_spell(text: str, wanted: bool | Language) -> str | None:
    """Why a text cannot be spelled out as wanted; ``None`` if it can."""
    if not is_installed():
        return "is not available here: the operator can add it with pip install 'voxr_ray[normalize]'"
    if wanted is True and language_of(text) is None and _LETTER.search(text):
        return f"covers {', '.join(LANGUAGES)}, and this text is in another script: leave normalize out"
    return None


def check_spelling(text: str, wanted: bool | Language) -> None:
    """Find out whether a text can be spelled out as wanted.

    Raises:
        InvalidRequest: The library is not installed, or there is no grammar for the script.
    """
    if wanted and (reason := can_spell(text, wanted)) is not None:
        raise InvalidRequest(f"normalize {reason}", param="normalize")


def language_of(text: str) -> Language | None:
    """Language of a text by its script: kana make it Japanese, other Han characters Chinese, Latin letters English.

    ``None`` if it has none of them.
    """
    if _KANA.search(text):
        return "ja"
    if _HAN.search(text):
        return "zh"
    return "en" if _LATIN.search(text) else None


class Speller:
    """Spells texts out. Any thread; one text's piece at a time, for nothing is promised of the library's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[Language, Any] = {}

    def spell_out(self, text: str, wanted: bool | Language) -> str:
        """The text in words.

        Args:
            text: Any text; its white space outlasts this, its paragraphs as well.
            wanted: A language, or ``True`` to tell it from the script, sentence by sentence.

        Raises:
            InvalidRequest: See :func:`check_spelling`.
        """
        check_spelling(text, wanted)
        if not wanted:
            return text
        whole = wanted if isinstance(wanted, str) else language_of(text) or "en"
        spelled = []
        for piece in within(tidy(text), _PIECE):
            language: Language | None = whole
            if wanted is True:
                language = language_of(piece) or (None if _LETTER.search(piece) else whole)
                if language == "zh" and whole == "ja":
                    language = "ja"
            spelled.append(piece if language is None else self._piece(piece, language))
        return "".join(spelled)

    def _piece(self, piece: str, language: Language) -> str:
        # The quotation marks say nothing that is heard; what lies between two of them is spelled by itself.
        return _apart(_QUOTED, piece, partial(self._words, language=language))

    def _words(self, words: str, *, language: Language) -> str:
        body = words.strip()
        if not is_speakable(body) or (language == "en" and _is_plain(body)):
            return words
        with self._lock:
            try:
                made = str(self._normalizer(language).normalize(body)).strip()
            except (AssertionError, RuntimeError, ValueError) as error:  # a character its grammars do not know
                _log.debug("not spelled out: %r (%s)", body, type(error).__name__)
                return words
        if not is_speakable(made):
            return words
        start = words.index(body)
        return words[:start] + made + words[start + len(body) :]

    def _normalizer(self, language: Language) -> Any:
        if language not in self._made:
            from wetext import Normalizer

            self._made[language] = Normalizer(lang=language, operator="tn")
        return self._made[language]


def _is_plain(body: str) -> bool:
    # An inner dot may belong to an abbreviation, and capitals may be a Roman number.
    return _PLAIN.fullmatch(body) is not None and not re.search(r"\b[IVXLCDM]{2,}\b", body)


def _apart(marks: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Change what stands between marks and leave the marks."""
    made: list[str] = []
    at = 0
    for mark in marks.finditer(text):
        made += [change(text[at : mark.start()]), mark[0]]
        at = mark.end()
    made.append(change(text[at:]))
    return "".join(made)
