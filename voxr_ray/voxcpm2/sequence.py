"""The prefix of a request: text tokens and encoded patches in the order that its mode prescribes.

=============  =======================================
zero-shot      ``text 101``
reference      ``103 reference… 104 text 101``
continuation   ``prompt text + text 101 prompt…``
both           ``103 reference… 104 prompt text + text 101 prompt…``
=============  =======================================

Source: OpenBMB/VoxCPM, ``VoxCPM2Model._generate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

AUDIO_START = 101
REFERENCE_START = 103
REFERENCE_END = 104

CONTEXT_PATCHES = 3
"""Prompt patches that the decoder hears, and whose audio is thrown away, before the first patch of a continuation.

Upstream takes the last positions that hold audio, which reach into the reference when the prompt is shorter than
this; here only the prompt counts, because the reference is not what the answer continues.
"""


def count_positions(text_tokens: int, reference_patches: int, prompt_patches: int) -> int:
    """Positions of a prefix; patch counts are zero for what the request does not have."""
    reference = reference_patches + 2 if reference_patches else 0
    return reference + text_tokens + 1 + prompt_patches


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """A prefix laid out.

    Attributes:
        token_ids: int64 ``(positions,)``, zero where a patch stands.
        is_audio: bool ``(positions,)``.
        patches: float32 ``(patches, patch_size, feat_dim)``: reference, then prompt.
        prompt: float32 ``(prompt patches, patch_size, feat_dim)``, possibly empty.
    """

    token_ids: Tensor
    is_audio: Tensor
    patches: Tensor
    prompt: Tensor

    @classmethod
    def build(
        cls,
        token_ids: Sequence[int],
        reference: np.ndarray | None,
        prompt: np.ndarray | None,
        *,
        patch_shape: tuple[int, int],
        device: torch.device,
    ) -> Self:
        """Lay out the tokens of all text (prompt's and target's) with the features of reference and prompt."""
        empty = np.zeros((0, *patch_shape), dtype=np.float32)
        before = empty if reference is None else reference
        behind = empty if prompt is None else prompt
        ids = [REFERENCE_START, *[0] * len(before), REFERENCE_END] if len(before) else []
        audio = [False, *[True] * len(before), False] if len(before) else []
        ids += [*token_ids, AUDIO_START, *[0] * len(behind)]
        audio += [False] * (len(token_ids) + 1) + [True] * len(behind)
        return cls(
            token_ids=torch.tensor(ids, dtype=torch.int64, device=device),
            is_audio=torch.tensor(audio, dtype=torch.bool, device=device),
            patches=torch.from_numpy(np.concatenate((before, behind))).to(device),
            prompt=torch.from_numpy(np.ascontiguousarray(behind)).to(device),
        )

    def __len__(self) -> int:
        return len(self.token_ids)
