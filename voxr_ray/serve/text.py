"""What the text of an HTTP request becomes before the model sees it. Pure functions.

VoxCPM2 takes a bracket at the very start of a text as a description of the style and does not speak it. Over HTTP
that place belongs to ``instructions``; whatever ``input`` begins with is meant to be spoken.
"""

from __future__ import annotations

import unicodedata

_OPENING = {"(": ")", "（": "）"}
_BRACKETS = str.maketrans(dict.fromkeys("()（）", ","))


def is_speakable(text: str) -> bool:
    """Whether the text holds anything to pronounce: a letter or a number of any script."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def compose(text: str, instructions: str | None) -> str:
    """The model's text for an ``input`` and its ``instructions``.

    Args:
        text: What to speak. A bracket it begins with becomes a comma after its content, so that it is spoken.
        instructions: The style, or ``None``. Brackets inside become commas: the first closing one would end it.
    """
    spoken = _without_leading_bracket(text)
    return spoken if instructions is None else f"({instructions.strip().translate(_BRACKETS)}){spoken}"


def style_of(text: str) -> tuple[str, str]:
    """A model's text in two: the style it begins with, brackets included (or nothing), and what is spoken."""
    body = text.lstrip()
    closing = _OPENING.get(body[:1])
    if closing is None or closing not in body:
        return "", text
    style, _, spoken = body.partition(closing)
    return style + closing, spoken


def _without_leading_bracket(text: str) -> str:
    body = text.lstrip()
    while body[:1] in _OPENING:
        closing = _OPENING[body[0]]
        inner, found, rest = body[1:].partition(closing)
        body = (inner + ("," if found and rest.strip() else "") + rest).lstrip()
        text = body
    return text
