"""Measured quality of a checkpoint: what a recogniser understands, whether takes end, and whose voice is heard.

Everything is rendered through the served model on texts that training never saw. ``--teacher`` measures the teacher's
own speech instead: the bar.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from training import sentences
from training.corpus import SPEAKERS, closed_vocabulary, template_sentence
from training.features import RATE_HZ
from training.files import read_json, write_json
from training.recognize import Recognizer, word_errors
from training.render import Rendering, render_all
from training.speakers import Classifier
from training.teacher import say
from voxr_ray.messages import Prompt, Reference, SynthRequest
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.settings import load_settings
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel

MODEL_SENTENCES = 20_000
DIGITS = sentences.NUMBERS[:21]
SINGLE_WORDS = """
hello yes no please sorry welcome good morning water coffee garden kitchen school red blue green yellow dog
cat horse book letter house river station monday friday happy tired hungry today tomorrow mother father
brother sister window door table bread cheese summer winter train teacher doctor breakfast evening afternoon
""".split()  # noqa: SIM905 - a list of one word a line is no easier to read
REFERENCE_S = 3.0
LONGER_THAN_TEACHER = 1.5


class Voice:
    """A checkpoint with the defaults it asks for."""

    def __init__(self, folder: Path, cfg_value: float | None) -> None:
        self.folder = folder
        wanted = load_settings(folder).defaults.model_dump(exclude_none=True)
        self.parameters = wanted if cfg_value is None else {**wanted, "cfg_value": cfg_value}

    def render(self, requests: Sequence[dict[str, object]]) -> list[Rendering]:
        """Render requests given as what they set besides the defaults."""
        model: VoxCPM2SlotModel = load_slot_model(str(self.folder), device="cpu", threads=1)
        return render_all(model, [SynthRequest(**{**self.parameters, **request}) for request in requests])


def teacher_audio(text: str, speaker: str) -> np.ndarray:
    return say(text, speaker)[0].astype(np.float32) / 32768.0


def _spoken(voice: Voice | None, texts: Sequence[str], seeds: Sequence[int]) -> list[Rendering]:
    """All texts at all seeds, seed by seed; without a voice, the teacher's first speaker once a seed."""
    if voice is None:
        first = next(iter(SPEAKERS))
        return [Rendering(teacher_audio(text, first), True) for _ in seeds for text in texts]
    return voice.render([{"text": text, "seed": seed} for seed in seeds for text in texts])


def word_error_rate(texts: Sequence[str], takes: Sequence[Rendering], recognizer: Recognizer) -> dict[str, object]:
    """Errors per hundred words, and the sentences that went worst."""
    scored: list[tuple[int, int, str]] = []
    for index, take in enumerate(takes):
        text = texts[index % len(texts)]
        heard = recognizer(take.samples)
        scored.append((word_errors(text, heard), len(text.split()), f"{text} → {heard}"))
    wrong, words = sum(row[0] for row in scored), sum(row[1] for row in scored)
    worst = [line for errors, _, line in sorted(scored, key=lambda row: -row[0]) if errors][:8]
    return {"wer_percent": round(100 * wrong / words, 1), "takes": len(takes), "worst": worst}


def ends_by_itself(texts: Sequence[str], takes: Sequence[Rendering]) -> dict[str, object]:
    """How many takes the stop head ended within a time the teacher's length allows."""
    first = next(iter(SPEAKERS))
    limits = [LONGER_THAN_TEACHER * max(len(teacher_audio(text, first)) / RATE_HZ, 0.64) for text in texts]
    good = sum(
        bool(take.stopped and len(take.samples) / RATE_HZ <= limits[index % len(texts)])
        for index, take in enumerate(takes)
    )
    return {"percent": round(100 * good / len(takes), 1), "takes": len(takes)}


def words_right(words: Sequence[str], takes: Sequence[Rendering], recognizer: Recognizer) -> dict[str, object]:
    """Single words recognised among their like."""
    pairs = [(words[index % len(words)], recognizer(take.samples)) for index, take in enumerate(takes)]
    wrong = [f"{said} → {heard}" for said, heard in pairs if said != heard]
    return {"percent": round(100 - 100 * len(wrong) / len(pairs), 1), "takes": len(pairs), "wrong": wrong[:12]}


def _reference_clip(speaker: str, rng: random.Random) -> np.ndarray:
    clip = np.zeros(0, dtype=np.int16)
    while len(clip) < REFERENCE_S * RATE_HZ:
        clip = np.concatenate((clip, say(template_sentence(rng), speaker)[0]))
    return clip[: int(REFERENCE_S * RATE_HZ)]


def cloning(voice: Voice, classifier: Classifier, texts: Sequence[str], seed: int) -> dict[str, object]:
    """Whose voice is heard: without a reference, with one, and behind a prompt."""
    rng = random.Random(seed)
    names, requests, wanted = list(SPEAKERS), [], []
    for name in names:
        for text in texts:
            clip = Reference.of_clip(_reference_clip(name, rng), RATE_HZ)
            requests.append({"text": text, "seed": seed, "reference": clip})
            wanted.append(("reference", name))
    for name in names:
        for text in texts:
            said = template_sentence(rng)
            audio = say(said, name)[0]
            requests.append({"text": " " + text, "seed": seed, "prompt": _prompt(audio, said + ".")})
            wanted.append(("prompt", name))
    for text in texts:
        requests.append({"text": text, "seed": seed})
        wanted.append(("none", names[0]))
    takes = voice.render(requests)
    result: dict[str, object] = {}
    for kind in ("reference", "prompt", "none"):
        per_speaker = {}
        for name in names if kind != "none" else names[:1]:
            found = [
                classifier(take.samples) == name
                for take, (case, speaker) in zip(takes, wanted, strict=True)
                if case == kind and speaker == name
            ]
            per_speaker[name] = f"{sum(found)}/{len(found)}"
        result[kind] = per_speaker
    return result


def _prompt(audio: np.ndarray, text: str) -> Prompt:
    clip = Reference.of_clip(audio, RATE_HZ)
    return Prompt(digest=clip.digest, clip=clip.clip, text=text)


def evaluate(
    work: Path, voice: Voice | None, seeds: Sequence[int], parts: Sequence[str], limit: int | None
) -> dict[str, object]:
    """Run the named parts."""
    test = read_json(work / "test.json")
    rng = random.Random(7)
    scratch = work / "recognizer"
    result: dict[str, object] = {}
    if "closed" in parts:
        texts = test["closed"][:limit]
        modelled = [template_sentence(rng) for _ in range(MODEL_SENTENCES)] + list(closed_vocabulary())
        takes = _spoken(voice, texts, seeds)
        result["closed"] = word_error_rate(texts, takes, Recognizer(scratch / "closed", modelled))
        result["ends"] = ends_by_itself(texts, takes)
    if "harvard" in parts:
        texts = test["harvard"][:limit]
        takes = _spoken(voice, texts, seeds)
        result["harvard"] = word_error_rate(texts, takes, Recognizer(scratch / "harvard", texts, words_alone=True))
    if "words" in parts:
        for name, words in (("digits", DIGITS), ("words", SINGLE_WORDS)):
            takes = _spoken(voice, words, seeds)
            result[name] = words_right(words, takes, Recognizer(scratch / name, words, single=True))
    if "cloning" in parts and voice is not None:
        result["cloning"] = cloning(voice, Classifier.from_teacher(work), test["closed"][:10], seeds[0])
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--folder", type=Path, help="checkpoint; WORK/checkpoint if not given")
    parser.add_argument("--teacher", action="store_true", help="measure the teacher instead")
    parser.add_argument("--seeds", type=int, default=1, help="renders of each text")
    parser.add_argument("--cfg", type=float, help="guidance, if not the checkpoint's own")
    parser.add_argument("--limit", type=int, help="sentences of each kind")
    parser.add_argument("--parts", nargs="+", default=["closed", "harvard", "words", "cloning"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    speaker = None if given.teacher else Voice(given.folder or given.work / "checkpoint", given.cfg)
    measured = evaluate(given.work, speaker, range(given.seeds), given.parts, given.limit)
    write_json(given.work / ("teacher.json" if given.teacher else "evaluation.json"), measured)
    for part, numbers in measured.items():
        print(part, numbers)
