"""Texts and the ids that the official tokenizer wrapper gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from voxr_ray.voxcpm2.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(reference_data: Path) -> TextTokenizer:
    return TextTokenizer(reference_data / "tiny" / "tokenizer.json")


@pytest.mark.parametrize("index", range(10))
def test_official_ids(tokenizer: TextTokenizer, reference_data: Path, index: int) -> None:
    entry = json.loads((reference_data / "tokens.json").read_text())[index]
    assert tokenizer.encode(entry["text"]) == entry["ids"]
