"""Where a text may be cut: at the ends of sentences, else at weaker places, never inside a word that fits.

Pure functions. Every cut keeps each character: the pieces of a text, joined, are the text. A boundary belongs to the
piece before it, closing quotes and white space included.

What ends a sentence depends on what follows ("3.14", "e.g. this", "J. S. Bach"), so a text that still grows is cut
only where the next character is known; scripts with full stops of their own need no such patience.

Texts may be as long as a book and come from anyone: every function here takes time in proportion to their length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from voxr_ray.serve.text import is_speakable

_WIDE_WEIGHT = 3
"""An ideograph takes about as long to say as three letters."""

_FULL_STOPS = "。！？｡︒؟۔।॥։።፧။"
_STOPS = ".!?…"
_CLOSERS = "\"'”’»)]}」』）】〉》›"
_CLAUSE_ENDS = ",;:，、；：،؛–—"

_END = re.compile(
    rf"(?P<paragraph>\n[^\S\n]*\n\s*)|(?P<full>[{_FULL_STOPS}][{_FULL_STOPS}{_STOPS}]*[{re.escape(_CLOSERS)}]*\s*)"
    rf"|(?<![{re.escape(_STOPS)}])(?P<stop>[{re.escape(_STOPS)}]+)(?P<tail>[{re.escape(_CLOSERS)}]*\s+)"
)
_CLAUSE = re.compile(rf"[{_CLAUSE_ENDS}][{re.escape(_CLOSERS)}]*(?:\s+|(?<=[，、；：]))|\n\s*")
_SPACE = re.compile(r"\s+")
_WORD_BREAK = re.compile(r"[\s(\[{\"'“‘«]")
_BACKWARDS = 64
"""Characters before a stop that are looked at: no word of interest is longer."""

_ABBREVIATIONS = frozenset(
    re.findall(
        r"\w+",
        """adm approx apt ave bd bzw ca capt cf cmdr co col corp dept dr ed eds eg est etc evtl fig figs fr gen ggf gov
        hon hr ie inc inkl jr lt ltd max messrs min mio mme mr mrs ms mt nr op p pp pres prof rd rep resp rev sen sgt
        sig sr sra st str tel usw vgl vol vs zzgl""",
    )
)
"""Words that are followed by a dot inside a sentence; compared without dots and capitals."""

_BEFORE_NUMBERS = frozenset({"no", "nos", "art", "sec", "ch", "abs", "kap", "pt", "núm"})
"""The same, before a number only."""


def weight(text: str) -> int:
    """How much there is to say, in letters: ideographs and kana count as three."""
    return sum(_WIDE_WEIGHT if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def tidy(text: str) -> str:
    """A text whose runs of white space are one space, one line break, or the empty line between two paragraphs."""
    return _SPACE.sub(lambda run: ("\n" * min(2, run[0].count("\n"))) or " ", text)


def sentences(text: str) -> list[str]:
    """Cut a whole text into its sentences; joined, they are the text."""
    ends = [*_sentence_ends(text, whole=True), len(text)]
    return _pieces(text, ends)


def within(text: str, most: int) -> list[str]:
    """Cut a text into its sentences, and those whose :func:`weight` is above ``most`` inside; joined, they are it."""
    return [piece for sentence in sentences(text) for piece in _fit(sentence, most)]


def split(text: str, most: int) -> list[str]:
    """Cut a text into parts for rendering.

    Sentences are kept together up to two fifths of the limit: enough for a voice to find its melody, and short enough
    for the next part to continue from the whole of it. Only a sentence that is over the limit is cut inside.

    Args:
        text: Any text.
        most: Largest :func:`weight` of a part, without the white space around it.

    Returns:
        Parts that, joined, are the text. One if it fits as a whole. A part without anything to pronounce only occurs
        where it would not fit into its neighbour.
    """
    if weight(text.strip()) <= most:
        return [text] if text else []
    pieces = within(text, most)
    target = 2 * most // 5
    parts: list[list[str]] = []
    held, speaks = 0, False
    for piece in pieces:
        piece_speaks = is_speakable(piece)
        room = target if speaks and piece_speaks else most
        if parts and held + weight(piece.rstrip()) <= room:
            parts[-1].append(piece)
            held, speaks = held + weight(piece), speaks or piece_speaks
        else:
            parts.append([piece])
            held, speaks = weight(piece.lstrip()), piece_speaks
    return ["".join(part) for part in parts]


class SentenceBuffer:
    """Collects a text that arrives in fragments and gives out its sentences as soon as they are complete.

    Args:
        most: Largest weight of a sentence; longer ones are cut as by :func:`split`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._text = ""

    def __len__(self) -> int:
        return len(self._text)

    def feed(self, fragment: str) -> list[str]:
        """Add a fragment; returns the sentences it completed."""
        self._text = tidy(self._text + fragment).lstrip()
        pieces = _pieces(self._text, [*_sentence_ends(self._text, whole=False), len(self._text)])
        # What has no end yet stays, but not more than one part of it.
        open_end = [] if self._ends_at(len(self._text)) else pieces[-1:]
        done = pieces[: len(pieces) - len(open_end)]
        cut = [piece for sentence in done for piece in _fit(sentence, self._most)]
        if open_end:
            *full, rest = _fit(open_end[0], self._most)
            cut += full
            self._text = rest
        else:
            self._text = ""
        return self._speakable(cut)

    def flush(self) -> list[str]:
        """What is left, complete or not."""
        left, self._text = self._text, ""
        return [piece for piece in within(left, self._most) if is_speakable(piece)]

    def clear(self) -> None:
        """Forget what is left."""
        self._text = ""

    def _ends_at(self, end: int) -> bool:
        return end in set(_sentence_ends(self._text, whole=False))

    def _speakable(self, pieces: list[str]) -> list[str]:
        """Pieces to speak; what cannot be pronounced by itself stays with its neighbour."""
        spoken: list[str] = []
        held = ""
        for piece in pieces:
            held += piece
            if is_speakable(held):
                spoken.append(held)
                held = ""
        if len(held) <= self._most:
            self._text = held + self._text
        return spoken


def _pieces(text: str, ends: list[int]) -> list[str]:
    pieces = []
    start = 0
    for end in ends:
        if end > start:
            pieces.append(text[start:end])
            start = end
    return pieces


def _sentence_ends(text: str, *, whole: bool) -> Iterator[int]:
    start = 0
    for match in _END.finditer(text):
        end = match.end()
        if match["stop"] is not None:
            if end == len(text) and not whole:
                return
            stop = match.start("stop")
            if not _is_end(text[max(start, stop - _BACKWARDS) : stop], match["stop"], text[end : end + 1]):
                continue
        yield end
        start = end


def _is_end(before: str, stop: str, following: str) -> bool:
    """Whether a stop with white space after it ends the sentence ``before`` it."""
    if following.islower():
        return False
    if stop != ".":
        return True
    token = _WORD_BREAK.split(before)[-1].lower()
    bare = token.replace(".", "")
    if not bare:
        return True
    if "." in token or (len(bare) == 1 and bare.isalpha()):
        # "e.g.", "z. B.", "J. S. Bach"; but "at 5 p.m. He left" does end.
        return bare in ("am", "pm", "usa", "us", "uk", "eu") and following.isupper()
    if bare in _ABBREVIATIONS or (bare in _BEFORE_NUMBERS and following.isdecimal()):
        return False
    # The number of a list's item: "1. First".
    return not (bare.isdecimal() and before.rsplit("\n", 1)[-1].strip() == bare)


def _fit(sentence: str, most: int) -> list[str]:
    """Cut a sentence into pieces within the limit, at the best places it has."""
    if weight(sentence.strip()) <= most:
        return [sentence]
    for cutter in (_at(_CLAUSE), _at(_SPACE), _characters):
        pieces = cutter(sentence)
        if len(pieces) > 1:
            return _pack([fitting for piece in pieces for fitting in _fit(piece, most)], most)
    return [sentence]


def _pack(pieces: list[str], most: int) -> list[str]:
    packed: list[list[str]] = []
    held = 0
    for piece in pieces:
        if packed and held + weight(piece.rstrip()) <= most:
            packed[-1].append(piece)
            held += weight(piece)
        else:
            packed.append([piece])
            held = weight(piece.lstrip())
    return ["".join(each) for each in packed]


def _at(pattern: re.Pattern[str]) -> Callable[[str], list[str]]:
    def cut(text: str) -> list[str]:
        return _pieces(text, [*(match.end() for match in pattern.finditer(text) if match.start() > 0), len(text)])

    return cut


def _characters(text: str) -> list[str]:
    """Single characters, each with the marks that belong to it."""
    ends = [
        index
        for index in range(1, len(text))
        if unicodedata.category(text[index])[0] != "M" and text[index] != "\u200d" and text[index - 1] != "\u200d"
    ]
    return _pieces(text, [*ends, len(text)])
