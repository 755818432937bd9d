"""Shapes the published checkpoints do not have, against recordings of the official package.

``scripts/record_variants.py`` made the recordings.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tests.checkpoints import VARIANTS, variant_config, write_checkpoint
from tests.rendering import render, seat
from voxr_ray.messages import Prompt, Reference, SynthRequest
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.sequence import CONTEXT_PATCHES

TEXT = "One more variant."
SEED = 3
CLIP_SAMPLES = 2001


@pytest.fixture(scope="module")
def recorded(reference_data: Path) -> dict[str, np.ndarray]:
    return dict(np.load(reference_data.parent / "variants.npz"))


@pytest.mark.parametrize("mode", ["zero_shot", "combined"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variant(tmp_path: Path, reference_data: Path, recorded: dict[str, np.ndarray], name: str, mode: str) -> None:
    model = load_slot_model(str(write_checkpoint(tmp_path / name, variant_config(name))), device="cpu")
    model.open(1, 512)
    feat, wav = recorded[f"{name}|{mode}|feat"], recorded[f"{name}|{mode}|wav"]
    fields = {}
    if mode == "combined":
        clip, _ = soundfile.read(reference_data / "cases" / "prompt_16k.wav", dtype="int16")
        clip = clip[:CLIP_SAMPLES]
        fields = {
            "reference": Reference.of_clip(clip, 16_000),
            "prompt": Prompt(digest="", clip=clip, text="A clip, "),
        }
    request = SynthRequest(text=TEXT, min_len=len(feat), max_len=len(feat), inference_timesteps=5, **fields)
    take = render(model, request, SEED)
    assert take.samples.shape == wav.shape
    # With a prompt shorter than the decode context upstream's decoder starts inside the reference; ours does not.
    prompt_patches = -(-CLIP_SAMPLES // model.spec.input_samples_per_patch) if fields else CONTEXT_PATCHES
    if prompt_patches >= CONTEXT_PATCHES:
        assert np.abs(take.samples - wav).max() <= 1e-4
    seat(model, 0, request, SEED)
    for _ in feat:
        model.step(1, request.sampler)
    drawn = torch.stack(model.lanes.seats[0].pending).numpy()
    assert np.abs(drawn - feat).max() <= 1e-2
    assert np.abs(drawn - feat)[:5].max() <= 1e-4
