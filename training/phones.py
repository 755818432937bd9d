"""The teacher's phones, and the one character by which each of them stands in a token sequence.

The characters are upper-case letters, which text never holds once the tokenizer has lowered it, so that a spelled word
and a word that the lexicon knows cannot be confused.
"""

from __future__ import annotations

PAUSE = "pau"

SYMBOLS = {
    "aa": "A",
    "ae": "Æ",
    "ah": "Ʌ",
    "ao": "Ɔ",
    "aw": "Å",
    "ax": "Ə",
    "ay": "I",
    "b": "B",
    "ch": "C",
    "d": "D",
    "dh": "Ð",
    "eh": "Ɛ",
    "er": "Ǝ",
    "ey": "E",
    "f": "F",
    "g": "G",
    "hh": "H",
    "ih": "Ï",
    "iy": "Í",
    "jh": "J",
    "k": "K",
    "l": "L",
    "m": "M",
    "n": "N",
    "ng": "Ŋ",
    "ow": "O",
    "oy": "Ø",
    "p": "P",
    "r": "R",
    "s": "S",
    "sh": "Ʃ",
    "t": "T",
    "th": "Θ",
    "uh": "Ʊ",
    "uw": "U",
    "v": "V",
    "w": "W",
    "y": "Y",
    "z": "Z",
    "zh": "Ʒ",
}

PHONES = (PAUSE, *SYMBOLS)
"""All classes of the phone labels; the index is the label."""

INDEX = {phone: index for index, phone in enumerate(PHONES)}
