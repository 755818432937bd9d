"""How words are pronounced, in the teacher's own opinion, and the tokenizer that carries it.

English spelling is what a model of this size learns last, so it is not asked to: the tokenizer's normalizer, which is
part of the official layout, turns numbers into words and frequent words into phones. What the lexicon does not know
stays in letters, which are trained too.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers
from tqdm import tqdm

from training import phones
from training.corpus import closed_vocabulary, frequent_words
from training.files import read_json, write_json
from training.flite import flite
from training.settings import VOCABULARY

LEXICON_WORDS = 16000
SPEAKER = "kal16"
"""Any would do; this one is the fastest."""

WEAK_FORMS = {"a": "ax", "the": "dh ax"}
"""What a word is inside a sentence, where flite says it otherwise alone."""

AUDIO_TOKENS = {101: "<|audio_start|>", 102: "<|audio_end|>", 103: "<|ref_audio_start|>", 104: "<|ref_audio_end|>"}
FIRST_CHARACTER = 105
WORD_START = "▁"

UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEENS = (
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
TENS = {2: "twenty", 3: "thirty", 4: "forty", 5: "fifty", 6: "sixty", 7: "seventy", 8: "eighty", 9: "ninety"}

_WORD = re.compile(r"\b[a-z]+('[a-z]+)?\b")


def build() -> dict[str, str]:
    """Words and their phones, each phone one character."""
    lexicon: dict[str, str] = {}
    words = dict.fromkeys([*closed_vocabulary(), *frequent_words(LEXICON_WORDS)])
    for word in tqdm(words, desc="lexicon", unit="word"):
        said = WEAK_FORMS[word].split() if word in WEAK_FORMS else [phone for phone, _ in flite().say(word, SPEAKER)[1]]
        lexicon[word] = "".join(phones.SYMBOLS[phone] for phone in said if phone != phones.PAUSE)
    return lexicon


def pronounce(text: str, lexicon: dict[str, str], rng: random.Random | None = None, spelled: float = 0.0) -> str:
    """What the normalizer makes of lower-case text without figures; a share ``spelled`` of the words stays letters."""

    def one(match: re.Match[str]) -> str:
        if rng is not None and rng.random() < spelled:
            return match[0]
        return lexicon.get(match[0], match[0])

    return _WORD.sub(one, text)


def _number_rules() -> list[tuple[str, str]]:
    """Replacements that spell out figures. Contents are literal, so the context is in look-around."""
    rules = [
        (r"(?<=\d),000\b", " thousand"),
        (r"(?<=\d),(?=\d{3})", " thousand "),
        (r"(?<=\b[1-9])000\b", " thousand"),
        (r"(?<=\d)\.(?=\d)", " point "),
        (r"(?<=\b\d\d)(?=\d\d\b)", " "),  # years, and four figures in general, are two pairs
        (r"(?<=\d)(?=\d{3})", " "),
        (r"(?<=\b[1-9])(?=\d\d\b)", " hundred "),
        (r"(?<=hundred )00\b", ""),
        (r"(?<=hundred )0(?=[1-9]\b)", "and "),
        (r"\b0(?=\d)", "zero "),
    ]
    rules += [(rf"\b1{unit}\b", name) for unit, name in enumerate(TEENS)]
    for ten, name in TENS.items():
        rules += [(rf"\b{ten}0\b", name), (rf"\b{ten}(?=\d\b)", f"{name} ")]
    return rules + [(str(unit), f" {name} ") for unit, name in enumerate(UNITS)]


def _clean_rules() -> list[tuple[str, str]]:
    """Replacements that leave letters, apostrophes, comma, full stop and question mark of what people type."""
    return [
        (r"[‘’ʼ`]", "'"),
        (r"&", " and "),
        (r"%", " percent "),
        (r"\+", " plus "),
        (r"[!…]", "."),
        (r"[;:—–()\[\]{}]", ", "),
        (r"[\"“”„«»*_#|~^<>=/\\@$€£-]", " "),
        (r"(?<![a-z])'|'(?![a-z])", " "),
    ]


def _tidy_rules() -> list[tuple[str, str]]:
    return [(r"\s+", " "), (r" (?=[,.?])", ""), (r"[,.?]+(?=[,.?])", ""), (r"^[,.? ]+", ""), (r" +$", "")]


def build_tokenizer(lexicon: dict[str, str]) -> Tokenizer:
    """One token a character; phones are characters, and what is neither is spelled in bytes."""
    special = {0: "<unk>", 1: "<s>", 2: "</s>", **AUDIO_TOKENS}
    names = [special.get(index, f"<|reserved_{index}|>") for index in range(FIRST_CHARACTER)]
    names += [WORD_START, *map(chr, range(ord("!"), ord("~") + 1))]
    names += [symbol for symbol in phones.SYMBOLS.values() if symbol not in names]
    names += [f"<0x{byte:02X}>" for byte in range(256)]
    if len(names) > VOCABULARY:
        raise ValueError(f"{len(names)} tokens do not fit a vocabulary of {VOCABULARY}")
    vocab = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))  # noqa: S106
    # Longer words first: "it's" must be found before "it".
    words = sorted(lexicon.items(), key=lambda entry: ("'" not in entry[0], entry[0]))
    rules = [*_clean_rules(), *_number_rules(), *_tidy_rules()]
    rules += [(rf"\b{word}\b", symbols) for word, symbols in words]
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            *(normalizers.Replace(Regex(pattern), content) for pattern, content in rules),
            normalizers.Prepend(WORD_START),
            normalizers.Replace(" ", WORD_START),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special.values()])
    return tokenizer


def symbol_ids() -> dict[str, int]:
    """The token of every character that :func:`pronounce` can leave, and of the word start as a space."""
    vocabulary = build_tokenizer({}).get_vocab()
    ids = {token: number for token, number in vocabulary.items() if len(token) == 1}
    return {**ids, " ": vocabulary[WORD_START]}


def load(work: Path) -> dict[str, str]:
    """The lexicon, made if it is not there."""
    path = work / "lexicon.json"
    if not path.exists():
        write_json(path, build())
    content: dict[str, str] = read_json(path)
    return content


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    print(f"{len(load(parser.parse_args().work))} words")
