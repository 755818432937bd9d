"""The model card beside a checkpoint: where it comes from, what was measured, what it is not for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from training.files import read_json

TEXT = """\
# The embedded voice

A small VoxCPM2-architecture text-to-speech model (6.7 M parameters, AudioVAE 1.5 M, 16 kHz) that comes with
`voxr_ray`, so that the first request is answered with words. Apache-2.0, like the package.

**Data.** Synthetic speech only: {utterances}
of sentences from templates, random runs of frequent English words and single words, said by the voices `slt`, `rms`
and `awb` of CMU Flite 2.2 (BSD-style licence, built on the CMU ARCTIC recordings). No recording of a person was used
directly. Without a reference it speaks as `slt`; the recordings in `voices/`, the teacher's as well, make it speak as
the others.

**Text.** Its tokenizer spells out numbers and knows the pronunciation of the 16,000 most frequent English words; others
are spelled letter by letter, and often wrongly said.

**Measured** on sentences that training never saw, with pocketsphinx and a language model over the words that can occur:

| what | measured | teacher |
|---|---|---|
{rows}

**Limits.** English; short sentences, up to some 12 words; a plain, synthetic sound; voices it was not trained on are
imitated poorly. Not for production: use it to see the server work, and serve a real checkpoint.

Made with the code in `training/` of the source repository.
"""

MISSING = "–"


def _lookup(measured: dict[str, Any], part: str, key: str) -> str:
    return f"{measured[part][key]} % of {measured[part]['takes']} takes" if part in measured else MISSING


def card(work: Path) -> str:
    """The card, with the numbers of ``evaluation.json`` and ``teacher.json`` where they are there."""
    measured, teacher = (
        read_json(path) if (path := work / name).exists() else {} for name in ("evaluation.json", "teacher.json")
    )
    rows = [
        f"| {label} | {_lookup(measured, part, key)} | {_lookup(teacher, part, key)} |"
        for label, part, key in (
            ("template sentences, word errors", "closed", "wer_percent"),
            ("Harvard sentences, word errors", "harvard", "wer_percent"),
            ("takes that end by themselves in time", "ends", "percent"),
            ("digits zero to twenty, right", "digits", "percent"),
            ("single words, right", "words", "percent"),
        )
    ]
    for kind, label in (("reference", "speaker of a 3 s reference"), ("prompt", "speaker of a prompt")):
        if "cloning" in measured:
            said = ", ".join(f"{name} {share}" for name, share in measured["cloning"][kind].items())
            rows.append(f"| {label} is recognised | {said} | {MISSING} |")
    shards = len(list((work / "latents").glob("*.npz")))
    return TEXT.format(utterances=f"{500 * shards:,} utterances" if shards else "utterances", rows="\n".join(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--folder", type=Path, help="checkpoint; WORK/checkpoint if not given")
    given = parser.parse_args()
    target = (given.folder or given.work / "checkpoint") / "README.md"
    target.write_text(card(given.work), encoding="utf-8")
