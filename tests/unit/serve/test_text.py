from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxr_ray.serve.text import compose, is_speakable


@pytest.mark.parametrize("text", ["a", "OK.", "好", "123", "é", "١", "— x —", "नमस्ते"])
def test_letters_and_numbers_of_any_script_can_be_spoken(text: str) -> None:
    assert is_speakable(text)


@pytest.mark.parametrize("text", ["", " ", "...", "?!", "🙂", "— …", "()", "$$$", "\u200b", "♪♫"])
def test_emoji_and_punctuation_alone_cannot(text: str) -> None:
    assert not is_speakable(text)


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("plain", "plain"),
        ("a (b) c", "a (b) c"),
        ("(aside) then this", "aside, then this"),
        ("(all of it)", "all of it"),
        ("  (aside) then", "aside, then"),
        ("((twice)) then", "twice,, then"),
        ("(open", "open"),
        ("（旁白）正文", "旁白,正文"),
        ("[square] stays", "[square] stays"),
    ],
)
def test_a_leading_bracket_is_spoken(text: str, spoken: str) -> None:
    assert compose(text, None) == spoken


def test_instructions_are_the_only_bracket() -> None:
    assert compose("hello", " calm, low ") == "(calm, low)hello"
    assert compose("hello", "calm (but firm)") == "(calm ,but firm,)hello"
    assert compose("(x) hello", "calm") == "(calm)x, hello"


@given(st.text(), st.text())
def test_whatever_is_given_instructions_end_where_the_text_begins(text: str, instructions: str) -> None:
    composed = compose(text, instructions)
    style, _, spoken = composed[1:].partition(")")
    assert composed.startswith("(")
    assert "(" not in style
    assert not spoken.startswith(("(", "（")) or not spoken.strip("()（） ")


@given(st.text())
def test_text_never_begins_with_a_bracket(text: str) -> None:
    assert not compose(text, None).lstrip().startswith(("(", "（"))
