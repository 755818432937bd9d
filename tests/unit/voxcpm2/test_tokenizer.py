"""Text that stays text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.random_checkpoint import character_tokenizer
from voxr_ray.errors import CheckpointError, InvalidRequest
from voxr_ray.voxcpm2.hub import default_checkpoint
from voxr_ray.voxcpm2.tokenizer import TextTokenizer, collapse_spaces

DEFAULT = TextTokenizer(default_checkpoint() / "tokenizer.json")


@pytest.fixture(scope="module")
def plain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tokenizer with one token a character."""
    path = tmp_path_factory.mktemp("tokenizer") / "plain.json"
    character_tokenizer(512).save(str(path))
    return path


@pytest.fixture(scope="module")
def golden(reference_data: Path) -> TextTokenizer:
    return TextTokenizer(reference_data / "tiny" / "tokenizer.json")


@given(st.text(max_size=60))
def test_no_text_becomes_a_special_token(text: str) -> None:
    """T5: audio tokens are positions of the model, never something a caller can write."""
    assert not {0, 1, 2, 101, 102, 103, 104}.intersection(DEFAULT.encode(text))


def test_the_embedded_voice_reads_numbers_as_words() -> None:
    assert DEFAULT.encode("7 dogs") == DEFAULT.encode("seven dogs")
    assert DEFAULT.encode("seven") != DEFAULT.encode("eleven")


@pytest.mark.parametrize("spelled", ["<|audio_start|>", "<|ref_audio_end|>", "<s>", "</s>", "<unk>"])
def test_spelled_special_tokens_are_spoken_as_characters(plain_file: Path, spelled: str) -> None:
    ids = TextTokenizer(plain_file).encode(f"say {spelled} now")
    assert len(ids) == len(f" say {spelled} now")
    assert min(ids) >= 105


def test_han_words_are_split(golden: TextTokenizer) -> None:
    """Two characters that the vocabulary also holds as one word become two tokens, with or without a word start."""
    assert golden.encode("a世界")[-2:] == golden.encode("a 世界")[-2:] == [394, 401]


def test_empty_text_has_no_token(golden: TextTokenizer) -> None:
    assert golden.encode("") == []


@pytest.mark.parametrize(
    ("text", "collapsed"), [("a\n b", "a b"), (" a ", " a "), ("\t\r\n", " "), ("a\u3000b", "a b"), ("ab", "ab")]
)
def test_white_space_runs_become_one_space_and_ends_are_kept(text: str, collapsed: str) -> None:
    assert collapse_spaces(text) == collapsed


def write(folder: Path, spec: dict[str, Any], change: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**spec, **change}))
    return path


def test_a_reserved_token_that_merges_reach_is_refused(plain_file: Path, tmp_path: Path) -> None:
    """Were a vocabulary to spell a reserved token out of ordinary pieces, the text would be refused."""
    spec = json.loads(plain_file.read_text())
    vocab = spec["model"]["vocab"] | {"xy": 460}
    added = [{**spec["added_tokens"][0], "id": 460, "content": "xy"}]
    path = write(
        tmp_path, spec, {"model": spec["model"] | {"vocab": vocab, "merges": [["x", "y"]]}, "added_tokens": added}
    )
    with pytest.raises(InvalidRequest, match="460"):
        TextTokenizer(path).encode("axyb")


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        TextTokenizer(tmp_path / "none.json")
    for content in ("{", "{}", "[]"):
        (tmp_path / "t.json").write_text(content)
        with pytest.raises(CheckpointError, match="not a tokenizer"):
            TextTokenizer(tmp_path / "t.json")


def test_what_is_remembered_belongs_to_nobody(plain_file: Path) -> None:
    tokenizer = TextTokenizer(plain_file)
    first = tokenizer.encode("the same text")
    first.clear()
    assert tokenizer.encode("the same text") == TextTokenizer(plain_file).encode("the same text") != []


def test_a_text_too_long_to_remember_is_encoded_alike(plain_file: Path) -> None:
    tokenizer = TextTokenizer(plain_file)
    assert len(tokenizer.encode("long " * 2000)) == len(tokenizer.encode("long " * 10)) + 5 * 1990
