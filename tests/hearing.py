"""A recogniser for what the embedded checkpoint says: it hears sentences like those the voice was trained for.

Its language model is counted on sentences of the training's templates, so that what is judged is the sound: without
one, a recogniser of this size understands nobody.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from training.corpus import closed_vocabulary, template_sentence
from training.recognize import Recognizer, word_errors

RATE_HZ = 16000
_MODEL_SENTENCES = 5000


def open_ear(folder: Path) -> Recognizer:
    """A recogniser of the template sentences; ``folder`` gets its files."""
    rng = random.Random(7)
    said = [template_sentence(rng) for _ in range(_MODEL_SENTENCES)]
    return Recognizer(folder, [*said, *closed_vocabulary()])


def samples_of(file: bytes) -> np.ndarray:
    """float32 samples of a WAV file at the recogniser's rate."""
    samples, rate_hz = soundfile.read(io.BytesIO(file), dtype="float32")
    if rate_hz != RATE_HZ:
        raise ValueError(f"the recogniser hears {RATE_HZ} Hz, not {rate_hz}")
    return np.asarray(samples)


def error_rate(texts: Sequence[str], heard: Sequence[str]) -> float:
    """Word errors per word said."""
    wrong = sum(word_errors(text, words) for text, words in zip(texts, heard, strict=True))
    return wrong / sum(len(text.split()) for text in texts)
