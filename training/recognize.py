"""Speech recognition for the evaluation: pocketsphinx, whose wheel brings an acoustic model and a dictionary.

It is a weak recogniser, so it is told what can be said: a bigram language model over the small vocabulary, word
frequencies alone for the open sentences, and a grammar of single words.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pocketsphinx

from training.features import RATE_HZ

DISCOUNT = 0.5
"""Taken off every bigram count, for words that were not seen together."""

SILENCE_S = 0.25
"""Put around every recording: the recogniser loses words that begin at once."""


def _dictionary(words: Iterable[str], folder: Path) -> Path:
    """Pronunciations of these words alone; those the recogniser's own dictionary lacks are the teacher's."""
    known: defaultdict[str, list[str]] = defaultdict(list)
    with (Path(pocketsphinx.get_model_path()) / "en-us" / "cmudict-en-us.dict").open(encoding="utf-8") as lines:
        for line in lines:
            word, _, said = line.strip().partition(" ")
            known[word.split("(")[0]].append(said.strip())
    path = folder / "words.dict"
    with path.open("w", encoding="utf-8") as file:
        for word in sorted(set(words)):
            sayings = known.get(word) or [_teachers(word)]
            for index, said in enumerate(sayings):
                file.write(f"{word}{f'({index + 1})' if index else ''} {said}\n")
    return path


def _teachers(word: str) -> str:
    # The teacher is not needed, and may not be installed, where the recogniser knows all words.
    from training.flite import flite
    from training.lexicon import SPEAKER
    from training.phones import PAUSE

    said = [phone for phone, _ in flite().say(word, SPEAKER)[1] if phone != PAUSE]
    return " ".join("AH" if phone == "ax" else phone.upper() for phone in said)


def _bigram_model(sentences: Iterable[str], folder: Path) -> Path:
    """An ARPA file of absolutely discounted bigrams."""
    singles: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for sentence in sentences:
        words = ["<s>", *sentence.replace(",", " ").split(), "</s>"]
        singles.update(words[1:])
        pairs.update(pairwise(words))
    total = sum(singles.values())
    follow: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (first, second), count in pairs.items():
        follow[first][second] = count
    path = folder / "bigram.arpa"
    with path.open("w", encoding="utf-8") as file:
        file.write(f"\\data\\\nngram 1={len(singles) + 1}\nngram 2={len(pairs)}\n\n\\1-grams:\n")
        for word in ["<s>", *sorted(singles)]:
            seen = follow.get(word, {})
            count = sum(seen.values())
            left = DISCOUNT * len(seen) / count if count else 1.0
            unseen = 1.0 - sum(singles[other] for other in seen) / total
            back_off = math.log10(max(left, 1e-6) / max(unseen, 1e-6)) if count else 0.0
            probability = math.log10(singles[word] / total) if word in singles else -99.0
            file.write(f"{probability:.4f} {word} {back_off:.4f}\n")
        file.write("\n\\2-grams:\n")
        for first in sorted(follow):
            count = sum(follow[first].values())
            for second, times in sorted(follow[first].items()):
                file.write(f"{math.log10((times - DISCOUNT) / count):.4f} {first} {second}\n")
        file.write("\n\\end\\\n")
    return path


def _grammar(words: Sequence[str], folder: Path) -> Path:
    path = folder / "words.gram"
    path.write_text(f"#JSGF V1.0;\ngrammar words;\npublic <word> = {' | '.join(words)};\n", encoding="utf-8")
    return path


class Recognizer:
    """A recogniser of sentences like the given ones, or of single words.

    Args:
        folder: Where its files go.
        sentences: What the language model is counted on.
        single: Take ``sentences`` as single words, one of which each recording says.
        words_alone: Count words, not pairs.
    """

    def __init__(
        self, folder: Path, sentences: Sequence[str], *, single: bool = False, words_alone: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        words = sorted({word for sentence in sentences for word in sentence.replace(",", " ").split()})
        options = {
            "hmm": os.path.join(pocketsphinx.get_model_path(), "en-us", "en-us"),
            "dict": str(_dictionary(words, folder)),
            "loglevel": "FATAL",
        }
        if single:
            options["jsgf"] = str(_grammar(words, folder))
        else:
            counted = words if words_alone else sentences
            options["lm"] = str(_bigram_model(counted, folder))
        self._decoder = pocketsphinx.Decoder(**options)

    def __call__(self, samples: np.ndarray) -> str:
        """The words of float32 samples at 16 kHz."""
        silence = np.zeros(int(SILENCE_S * RATE_HZ), dtype=np.float32)
        quiet = np.random.default_rng(0).standard_normal(len(samples) + 2 * len(silence)) * 3e-4
        audio = np.concatenate((silence, samples, silence)) + quiet
        self._decoder.start_utt()
        self._decoder.process_raw((np.clip(audio, -1, 1) * 32767).astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return "" if found is None else str(found.hypstr)


def word_errors(said: str, heard: str) -> int:
    """Substitutions, insertions and deletions between two texts."""
    truth, guess = said.replace(",", " ").split(), heard.split()
    row = list(range(len(guess) + 1))
    for index, word in enumerate(truth, start=1):
        before, row[0] = row[0], index
        for column, other in enumerate(guess, start=1):
            before, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, before + (word != other))
    return row[-1]
