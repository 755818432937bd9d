"""Training sequences of the language model, laid out as requests are.

Three kinds, each also a way of serving: plain text (the first speaker alone, who thereby becomes the voice without a
reference), a reference of the same speaker in front, and a continuation, where one utterance is the prompt of the next.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.align import align
from training.corpus import closed_vocabulary
from training.latents import split
from training.lexicon import pronounce, symbol_ids
from training.settings import LATENT_DIM, PATCH_SIZE
from voxr_ray.voxcpm2.sequence import AUDIO_START, REFERENCE_END, REFERENCE_START

REFERENCE_PATCHES = (3, 20)
SPELLED = 0.05
"""Words left in letters, so that what the lexicon lacks can be said as well."""

PLAIN = 0.75
"""Share of batches of plain text. They are short, so that most patches learned are the first speaker's."""

CONTINUED = 0.2
"""Share of prompts in the other batches, which are of all speakers; the rest has a reference."""

NEAR = 0.72
"""Share of utterances made of the templates' words alone, which the voice is to say best."""

JOINTS = (" ", ". ", ". ", ".")
ENDINGS = ("", "", "", ".", ".", "?")


@dataclass(frozen=True, slots=True)
class Utterance:
    """Teacher speech as the language model sees it.

    Attributes:
        text: Lower-case text.
        speaker: Index of the speaker.
        patches: float16 ``(patches, PATCH_SIZE, LATENT_DIM)``.
        labels: int8 ``(patches, PATCH_SIZE)``.
    """

    text: str
    speaker: int
    patches: np.ndarray
    labels: np.ndarray


@dataclass(slots=True)
class Item:
    """One sequence: what stands at each position, and which patches are to be learned.

    ``conditions[i]`` is the position whose hidden state draws patch ``targets[i]`` (an index into ``patches``), behind
    patch ``previous[i]`` (-1: none). ``spoken[i]`` has the positions of the tokens that its frames say.
    """

    token_ids: list[int] = field(default_factory=list)
    is_audio: list[bool] = field(default_factory=list)
    patches: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    conditions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    stops: list[bool] = field(default_factory=list)
    spoken: list[np.ndarray] = field(default_factory=list)

    def add_text(self, ids: list[int]) -> None:
        """Append token positions."""
        self.token_ids += ids
        self.is_audio += [False] * len(ids)

    def add_patches(
        self,
        patches: np.ndarray,
        labels: np.ndarray,
        *,
        learn: bool = False,
        last: bool = False,
        spoken: np.ndarray | None = None,
    ) -> None:
        """Append patch positions; ``last`` says that the take ends with them."""
        for index in range(len(patches)):
            if learn:
                behind = self.is_audio[-1]
                self.conditions.append(len(self.token_ids) - 1)
                self.targets.append(len(self.patches))
                self.previous.append(len(self.patches) - 1 if behind else -1)
                self.stops.append(last and index == len(patches) - 1)
                if spoken is None:
                    raise ValueError("what is learned must say which tokens are spoken")
                self.spoken.append(spoken[index])
            self.token_ids.append(0)
            self.is_audio.append(True)
            self.patches.append(patches[index])
            self.labels.append(labels[index])


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded sequences; patches and targets of all rows are flat.

    Attributes:
        token_ids: int64 ``(rows, length)``.
        audio_at: int64 ``(patches,)``: flat positions ``row * length + position``, in the order of ``patches``.
        patches: float32 ``(patches, PATCH_SIZE, LATENT_DIM)``.
        conditions: int64 ``(targets,)``: flat positions.
        targets: int64 ``(targets,)``: indices into ``patches``.
        previous: int64 ``(targets,)``: indices into ``patches``, -1 for none.
        stops: int64 ``(targets,)``: 0 or 1.
        labels: int64 ``(targets, PATCH_SIZE)``: phones.
        spoken: int64 ``(targets, PATCH_SIZE)``: positions in the row.
    """

    token_ids: Tensor
    audio_at: Tensor
    patches: Tensor
    conditions: Tensor
    targets: Tensor
    previous: Tensor
    stops: Tensor
    labels: Tensor
    spoken: Tensor


class Corpus:
    """All utterances that are ready, in memory; :meth:`refresh` takes in shards written since."""

    def __init__(self, work: Path, lexicon: dict[str, str], seed: int) -> None:
        self.work, self.lexicon = work, lexicon
        self.random = random.Random(seed)
        self.ids = symbol_ids()
        self.utterances: list[Utterance] = []
        self.by_speaker: defaultdict[int, list[Utterance]] = defaultdict(list)
        self._near: defaultdict[int, list[Utterance]] = defaultdict(list)
        self._small = set(closed_vocabulary())
        self._seen: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Load new shards."""
        for path in sorted((self.work / "latents").glob("*.npz")):
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            for utterance in self.load_shard(path):
                self.utterances.append(utterance)
                self.by_speaker[utterance.speaker].append(utterance)
                if self._small.issuperset(utterance.text.replace(",", " ").split()):
                    self._near[utterance.speaker].append(utterance)

    @staticmethod
    def load_shard(path: Path) -> list[Utterance]:
        """The utterances of one shard of latents."""
        with np.load(path) as shard:
            counts = shard["frame_counts"] // PATCH_SIZE
            rows = zip(
                shard["texts"],
                shard["speakers"],
                split(shard["latents"].reshape(-1, PATCH_SIZE, LATENT_DIM), counts),
                split(shard["labels"].reshape(-1, PATCH_SIZE), counts),
                strict=True,
            )
            return [
                Utterance(str(text), int(speaker), patches.copy(), labels.copy())
                for text, speaker, patches, labels in rows
            ]

    def item(self, utterance: Utterance, longest: int, *, plain: bool) -> Item:
        """A sequence around one utterance; what is added to it is of at most about ``longest`` patches."""
        item, rng = Item(), self.random
        others = self.by_speaker[utterance.speaker]
        text, said = utterance.text + rng.choice(ENDINGS), [utterance]
        if not plain and rng.random() < CONTINUED:
            prompt = rng.choice(others)
            text, said = prompt.text + rng.choice(JOINTS) + text, [prompt, utterance]
        elif not plain:
            wanted = min(rng.randint(REFERENCE_PATCHES[0], rng.randint(*REFERENCE_PATCHES)), longest)
            reference: list[Utterance] = []
            while sum(len(other.patches) for other in reference) < wanted:
                reference.append(rng.choice(others))
            item.add_text([REFERENCE_START])
            item.add_patches(
                np.concatenate([other.patches for other in reference])[:wanted],
                np.concatenate([other.labels for other in reference])[:wanted],
            )
            item.add_text([REFERENCE_END])
        symbols = " " + pronounce(text, self.lexicon, rng, SPELLED)
        start = len(item.token_ids)
        item.add_text([*(self.ids[symbol] for symbol in symbols), AUDIO_START])
        spoken = start + align(symbols, np.concatenate([part.labels for part in said]).reshape(-1))
        spoken = spoken.reshape(-1, PATCH_SIZE)
        for part in said:
            last = part is said[-1]
            # The first speaker's beginnings are learned in prompts as well: nothing but the text says who speaks.
            learn = last or utterance.speaker == 0
            item.add_patches(part.patches, part.labels, learn=learn, last=last, spoken=spoken[: len(part.patches)])
            spoken = spoken[len(part.patches) :]
        return item

    def batch(self, positions: int, longest: int) -> Batch:
        """A batch of sequences of similar length, about ``positions`` with padding, of at most ``longest`` patches."""
        # One length at a time keeps padding small, and every length comes as often as the corpus has it.
        plain = self.random.random() < PLAIN
        around = len(self._choose(longest, plain=plain).patches)
        items: list[Item] = []
        length = 0
        while True:
            utterance = self._choose(longest, plain=plain)
            if abs(len(utterance.patches) - around) > 1 + around // 5:
                continue
            item = self.item(utterance, longest, plain=plain)
            length = max(length, len(item.token_ids))
            if items and length * (len(items) + 1) > positions:
                break
            items.append(item)
        return collate(items)

    def _choose(self, longest: int, *, plain: bool) -> Utterance:
        speaker = 0 if plain else self.random.choice(self.utterances).speaker
        among = self._near[speaker] if self.random.random() < NEAR else []
        while True:
            utterance = self.random.choice(among or self.by_speaker[speaker])
            if len(utterance.patches) <= longest:
                return utterance


def collate(items: list[Item]) -> Batch:
    """Pad and flatten."""
    length = max(len(item.token_ids) for item in items)
    token_ids = torch.zeros(len(items), length, dtype=torch.int64)
    audio_at: list[int] = []
    conditions: list[int] = []
    targets: list[int] = []
    previous: list[int] = []
    before = 0
    for row, item in enumerate(items):
        token_ids[row, : len(item.token_ids)] = torch.tensor(item.token_ids)
        audio_at += [row * length + position for position, audio in enumerate(item.is_audio) if audio]
        conditions += [row * length + position for position in item.conditions]
        targets += [before + index for index in item.targets]
        previous += [before + index if index >= 0 else -1 for index in item.previous]
        before += len(item.patches)
    patches = np.stack([patch for item in items for patch in item.patches]).astype(np.float32)
    labels = np.stack([label for item in items for label in item.labels]).astype(np.int64)
    return Batch(
        token_ids=token_ids,
        audio_at=torch.tensor(audio_at),
        patches=torch.from_numpy(patches),
        conditions=torch.tensor(conditions),
        targets=torch.tensor(targets),
        previous=torch.tensor(previous),
        stops=torch.tensor([stop for item in items for stop in item.stops]).long(),
        labels=torch.from_numpy(labels)[targets],
        spoken=torch.from_numpy(np.stack([positions for item in items for positions in item.spoken])),
    )
