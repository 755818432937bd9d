from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.unit.serve.local import LocalServer
from tests.unit.serve.sockets import connected
from voxr_ray.errors import InvalidRequest
from voxr_ray.messages import SynthRequest
from voxr_ray.serve import spelling
from voxr_ray.serve.spelling import Speller, language_of

NUMBERS = "On 3/4/2024 Dr. Smith paid $5.50 for 12 kg at 10:30 am."
WORDS = (
    "On the fourth of march twenty twenty four doctor Smith paid five point five dollars for twelve kilograms at "
    "ten thirty AM."
)


@pytest.fixture(scope="module")
def speller() -> Speller:
    return Speller()


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wetext" else found(name))


@pytest.mark.parametrize(
    ("text", "wanted", "spoken"),
    [
        (NUMBERS, True, WORDS),
        (NUMBERS, "en", WORDS),
        ("我有3个苹果，25.5℃，50%。", True, "我有三个苹果，二十五点五摄氏度，百分之五十。"),
        ("午後3時30分です。", True, "午後三時三十分です。"),
        ("3時です。第3章。", True, "三時です。第三章。"),
        ("我有3个。I have 3.", True, "我有三个。I have three."),
        ("5", True, "five"),
        ("5", "zh", "五"),
        ("5", False, "5"),
    ],
)
def test_numbers_are_spelled_out_in_the_language_of_the_text(
    speller: Speller, text: str, wanted: Any, spoken: str
) -> None:
    assert speller.spell_out(text, wanted) == spoken


@pytest.mark.parametrize(
    "text",
    [
        "Seven small boats, and one more: who sails them?",
        "First paragraph.\n\nSecond paragraph.",
        '"No," he said. "Never!"',
        "back\\slash and {braces}",
        "It's naïve – isn't it…",
        "\u200b+49 A+ B- 😀",
        "",
        " ?! ",
    ],
)
def test_what_needs_no_spelling_or_cannot_be_spelled_stays_as_it_is(speller: Speller, text: str) -> None:
    assert speller.spell_out(text, "en") == text


def test_quotation_marks_and_paragraphs_outlast_the_spelling(speller: Speller) -> None:
    assert speller.spell_out('He said "5 men".\n\nMr. Brown left.', True) == (
        'He said "five men".\n\nMister Brown left.'
    )


def test_a_page_of_digits_is_spelled_in_pieces(speller: Speller) -> None:
    assert speller.spell_out("9 " * 500, True).split() == ["nine"] * 500


@pytest.mark.parametrize(
    ("text", "language"),
    [("abc", "en"), ("你好 abc", "zh"), ("カナ", "ja"), ("漢字とかな", "ja"), ("3.14", None), ("привет", None)],
)
def test_the_script_tells_the_language(text: str, language: str | None) -> None:
    assert language_of(text) == language


def test_a_script_without_a_grammar_is_refused(speller: Speller) -> None:
    with pytest.raises(InvalidRequest, match="another script") as raised:
        speller.spell_out("привет 5", True)
    assert raised.value.param == "normalize"
    assert speller.spell_out("5", True) == "five"


async def audio(local: LocalServer, **body: Any) -> bytes:
    answer = await local.speak(**{"seed": 7} | body)
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_an_answer_speaks_the_words_and_only_if_asked_to(local: LocalServer) -> None:
    plain, words = await audio(local, input="I have 5 cups."), await audio(local, input="I have five cups.")
    assert plain != words
    assert await audio(local, input="I have 5 cups.", normalize=True) == words
    assert await audio(local, input="I have 5 cups.", normalize="en") == words
    assert await audio(local, input="I have 5 cups.", normalize=False) == plain
    streamed = await audio(local, input="I have 5 cups.", normalize=True, stream=True)
    assert streamed[44:] == words[44:]


async def test_instructions_are_not_spelled_out(local: LocalServer) -> None:
    words = await audio(local, input="I have five cups.", instructions="like a 5 year old")
    assert await audio(local, input="I have 5 cups.", instructions="like a 5 year old", normalize=True) == words


async def test_long_texts_are_spelled_out_before_they_are_cut(local: LocalServer) -> None:
    digits, words = "I have 5 cups. " * 60, "I have five cups. " * 60
    assert await audio(local, input=digits, normalize=True) == await audio(local, input=words)


async def test_batches_and_handles_spell_out_too(local: LocalServer) -> None:
    body = {"response_format": "wav", "seed": 7, "normalize": True, "items": [{"input": "5"}, {"input": "five"}]}
    results = (await local.client.post("/v1/audio/speech/batch", json=body)).json()["results"]
    assert results[0]["audio_data"] == results[1]["audio_data"] is not None
    spelled = await local.service.render(SynthRequest(text="(calm 5)5 cups", seed=7, normalize="en"))
    said = await local.service.render(SynthRequest(text="(calm 5)five cups", seed=7))
    assert (spelled.samples == said.samples).all()


async def test_a_setting_asks_for_it_where_requests_do_not() -> None:
    local = LocalServer({"normalize": True})
    try:
        words = await audio(local, input="five")
        assert await audio(local, input="5") == words
        assert await audio(local, input="5", normalize=False) != words
        assert (await local.speak(input="привет 5")).status_code == 200
    finally:
        await local.close()


@pytest.mark.parametrize("value", ["fr", "", 1, [True], {"a": 1}])
async def test_other_values_are_refused(local: LocalServer, value: Any) -> None:
    answer = await local.speak(input="5", normalize=value)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "normalize")


async def test_without_the_library_the_field_is_refused_with_the_remedy(
    local: LocalServer, without_library: None
) -> None:
    assert not spelling.is_installed()
    answer = await local.speak(input="5", normalize=True)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "normalize")
    assert "voxr_ray[normalize]" in error["message"]
    assert (await local.speak(input="5", normalize=False)).status_code == 200
    assert (await local.counts()).submitted == 1
    with pytest.raises(InvalidRequest, match="voxr_ray"):
        await local.service.render(SynthRequest(text="5", normalize=True))


async def test_a_session_spells_its_sentences_out(local: LocalServer) -> None:
    heard = []
    for text, fields in (("5 cups.", {"normalize": True}), ("five cups.", {})):
        async with connected(local) as socket:
            socket.say("session.config", response_format="pcm", seed=3, **fields)
            socket.say("input.text", text=text)
            socket.say("input.done")
            came = await socket.until("session.done")
            assert came[0]["sentence_text"] == text
            heard.append(b"".join(message for message in came if isinstance(message, bytes)))
    assert heard[0] == heard[1] != b""
