"""What the teacher is to say: sentences from templates, random runs of frequent words, and single words.

Half the corpus is sentences from a small vocabulary, which is what the voice must say well; random words carry the
phone sequences that templates lack; single words are there because a network that has only met sentences says "hello"
badly. The test sentences are drawn first and never trained.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from training import sentences
from training.files import write_json

SEED = 20260214
TEST_SENTENCES = 100
FREQUENT_WORDS = 7000
SPEAKERS = {"slt": 0.56, "rms": 0.23, "awb": 0.21}
"""Speakers and their shares. The first is the voice without a reference. ``kal16``, a diphone voice, is quiet and
rough: learning it cost the others more than it gave."""

KINDS = {"template": 0.42, "words": 0.4, "single": 0.18}

_WORD = re.compile(r"[a-z]+('[a-z]+)?")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One line of the corpus."""

    text: str
    speaker: str


def frequent_words(count: int = FREQUENT_WORDS) -> list[str]:
    """The most frequent English words that are letters only, most frequent first."""
    from wordfreq import top_n_list

    words = [word for word in top_n_list("en", 2 * count) if _WORD.fullmatch(word)]
    return [word for word in words if len(word) > 1 or word in "ai"][:count]


def closed_vocabulary() -> list[str]:
    """Every word that a template can say."""
    words: set[str] = set()
    for template in sentences.TEMPLATES:
        for name in re.findall(r"{(\w+)}s?", template):
            plural = f"{{{name}}}s" in template
            for choice in sentences.SLOTS[name].split("|"):
                words.update((choice + "s" if plural else choice).split())
        words.update(re.sub(r"{\w+}s?", " ", template).split())
    return sorted(words | set(sentences.NUMBERS))


def template_sentence(rng: random.Random) -> str:
    """One sentence from a random template."""
    template = rng.choice(sentences.TEMPLATES)
    return re.sub(r"{(\w+)}", lambda slot: rng.choice(sentences.SLOTS[slot[1]].split("|")), template)


def test_sentences(rng: random.Random) -> list[str]:
    """Distinct template sentences of at least four words."""
    chosen: dict[str, None] = {}
    while len(chosen) < TEST_SENTENCES:
        sentence = template_sentence(rng)
        if len(sentence.split()) >= 4:
            chosen[sentence] = None
    return list(chosen)


def _frequent_word(rng: random.Random, words: list[str]) -> str:
    # Uniform over a random prefix of the list: frequent words come more often, rare ones still come.
    return words[rng.randrange(rng.randint(200, len(words)))]


def _text(rng: random.Random, words: list[str], small: list[str]) -> str:
    kind = rng.choices(list(KINDS), weights=list(KINDS.values()))[0]
    if kind == "template":
        sentence = template_sentence(rng)
        # Two sentences with a pause between them, now and then: the voice must get past a comma.
        return f"{sentence}, {template_sentence(rng)}" if rng.random() < 0.12 else sentence
    if kind == "words":
        count = rng.randint(2, 9)
        return " ".join(_frequent_word(rng, words if rng.random() < 0.8 else small) for _ in range(count))
    draw = rng.random()
    if draw < 0.25:
        return rng.choice(sentences.NUMBERS)
    return rng.choice(small) if draw < 0.65 else _frequent_word(rng, words)


def build(count: int, seed: int = SEED) -> tuple[list[str], list[Utterance]]:
    """Test sentences and a corpus of ``count`` utterances without them."""
    rng = random.Random(seed)
    held_out = test_sentences(rng)
    excluded = {*held_out, *sentences.HARVARD}
    words, small = frequent_words(), closed_vocabulary()
    corpus: list[Utterance] = []
    while len(corpus) < count:
        text = _text(rng, words, small)
        speaker = rng.choices(list(SPEAKERS), weights=list(SPEAKERS.values()))[0]
        if not excluded.intersection(part.strip() for part in text.split(",")):
            corpus.append(Utterance(text, speaker))
    return held_out, corpus


def run(work: Path, count: int) -> None:
    """Write ``corpus.json`` and ``test.json``."""
    held_out, corpus = build(count)
    write_json(work / "test.json", {"closed": held_out, "harvard": list(sentences.HARVARD)})
    write_json(work / "corpus.json", [asdict(utterance) for utterance in corpus])
    print(f"{len(corpus)} utterances, {len(held_out)} held out, {len(closed_vocabulary())} words in the templates")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--utterances", type=int, default=48_000)
    arguments = parser.parse_args()
    run(arguments.work, arguments.utterances)
