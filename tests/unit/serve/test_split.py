"""Cutting texts: nothing lost, order kept, bounded parts, words whole, and sentences where readers see them."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voxr_ray.serve.split import SentenceBuffer, sentences, split, tidy, weight
from voxr_ray.serve.text import is_speakable

WORDS = st.sampled_from(
    ["Hello", "a", "Dr.", "e.g.", "3.14", "No.", "5", "wait...", "“Yes!”", "he", "Ende.", "z.", "B.", "J.", "你好。",
     "真的吗？", "今天天气很好", "ภาษาไทยไม่มีช่องว่าง", "नमस्ते।", "?!", "…", "🙂", "x" * 70, ",", "well,",
     "\n\n", "1.", "e\u0301" * 30]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(WORDS, max_size=60).map(" ".join), st.lists(WORDS, max_size=60).map("".join))


@pytest.mark.parametrize(
    "parts",
    [
        ["Hello there. ", "How are you? ", "Fine!"],
        ["It costs 3.14 dollars, e.g. this. ", "Really."],
        ["Dr. Smith and J. S. Bach left at 5 p.m. ", "He slept."],
        ["你好。", "今天天气很好！", "真的吗？", "“是的。”", "他说。"],
        ["1. First item.\n", "2. Second item."],
        ["A heading\n\n", "A paragraph. ", "Its end."],
        ["No. 5 is alive. ", "He said no. ", "She left."],
        ['She said "Hi." ', "Then she went... and came. ", "(So it was.) ", "Really?! ", "Yes."],
        ["“Really?” he asked. ", "Nobody knew."],
        ["Das gilt z. B. für Prof. Maier, d. h. nicht für alle. ", "Punkt."],
        ["Version 2.0.3 at example.org is out. ", "Get it."],
        ["यह एक वाक्य है। ", "यह दूसरा है।"],
        ["هل أنت بخير؟ ", "نعم."],
        ["one line\nand the next are one sentence"],
    ],
    ids=lambda parts: parts[0].strip(),
)
def test_sentences_end_where_readers_see_it(parts: list[str]) -> None:
    assert sentences("".join(parts)) == parts


@given(TEXTS, st.integers(40, 200))
@example("x" * 300, 40)
@example("。" * 100, 40)
@example("a. " * 100, 40)
def test_parts_are_the_text_and_fit(text: str, most: int) -> None:
    parts = split(text, most)
    assert "".join(parts) == text
    assert all(parts)
    for part in parts:
        # A character with its marks is never cut, so one alone may exceed.
        assert weight(part.strip()) <= most or len(re.findall(r"\w", part)) <= 2
    if weight(text.strip()) <= most:
        assert len(parts) <= 1


@given(TEXTS, st.integers(40, 200))
def test_a_word_is_only_cut_if_it_is_too_long_alone(text: str, most: int) -> None:
    at = 0
    for part in split(text, most)[:-1]:
        at += len(part)
        before, after = re.search(r"\S*$", text[:at]), re.match(r"\S*", text[at:])
        assert before is not None
        assert after is not None
        inside = bool(before[0]) and bool(after[0])
        if inside and re.fullmatch(r"[A-Za-z]+", before[0][-1] + after[0][0]):
            assert weight(before[0] + after[0]) > most


@given(TEXTS, st.lists(st.integers(1, 9), min_size=1))
def test_fragments_give_every_word_in_order(text: str, sizes: list[int]) -> None:
    buffer = SentenceBuffer(100)
    spoken: list[str] = []
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        spoken += buffer.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    spoken += buffer.flush()
    assert len(buffer) == 0
    assert all(is_speakable(each) and weight(each.strip()) <= 101 for each in spoken if len(each) < 90)

    def letters(value: str) -> str:
        return "".join(character for character in value if is_speakable(character))

    assert letters("".join(spoken)) == letters(text)


def test_a_sentence_comes_out_as_soon_as_it_is_certain() -> None:
    buffer = SentenceBuffer(100)
    came = {}
    for word in ["Hello ", "there. ", "It ", "is 3.", "5 ", "e.g. ", "so. ", "好的。", "Last", "."]:
        came[word] = buffer.feed(word)
    assert {word: out for word, out in came.items() if out} == {
        "It ": ["Hello there. "],
        "好的。": ["It is 3.5 e.g. so. ", "好的。"],
    }
    assert buffer.flush() == ["Last."]
    buffer.feed("forgotten")
    buffer.clear()
    assert buffer.flush() == []


def test_sentences_are_packed_and_mute_ones_join_their_neighbours() -> None:
    text = "This is a sentence. " * 40
    parts = split(text, 200)
    assert all(60 <= weight(part.strip()) <= 80 for part in parts)
    assert split("?! " * 3 + "Word. " * 50, 100)[0].startswith("?! ?! ?! Word")
    clauses = split("one clause of some length, " * 20, 60)
    assert all(part.endswith(", ") for part in clauses)


def test_white_space_is_tidied() -> None:
    assert tidy("a \t b\n c \n\n\n d") == "a b\nc\n\nd"


@pytest.mark.parametrize(
    "unit", [".", "e.g. ", "x", "，", "\n\t", " ", ',"', "a ", "。", "!?", "J. ", "1. ", "\u0301", "a,"]
)
def test_time_grows_with_length_only(unit: str) -> None:
    begun = time.process_time()
    split(unit * (100_000 // len(unit)), 500)
    SentenceBuffer(500).feed(unit * (50_000 // len(unit)))
    assert time.process_time() - begun < 10
