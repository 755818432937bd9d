"""The golden checkpoint and cases, loaded once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from voxr_ray.messages import Prompt, Reference, SynthRequest
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel
from voxr_ray.voxcpm2.tokenizer import TextTokenizer

RATE_HZ = 16_000


@dataclass(frozen=True)
class Case:
    """One golden render."""

    request: SynthRequest
    seed: int
    tokens: list[int]
    feat: np.ndarray
    wav: np.ndarray


def load_case(folder: Path, name: str) -> Case:
    """Read a case of ``cases.json`` with its arrays and recordings."""
    spec: dict[str, Any] = json.loads((folder / "cases.json").read_text())[name]
    arrays = np.load(folder / f"{name}.npz")
    fields: dict[str, Any] = {
        key: spec[key] for key in ("max_len", "cfg_value", "inference_timesteps", "min_len") if key in spec
    }
    if "reference_wav_path" in spec:
        clip, _ = soundfile.read(folder / spec["reference_wav_path"], dtype="int16")
        fields["reference"] = Reference.of_clip(clip, RATE_HZ)
    if "prompt_wav_path" in spec:
        clip, _ = soundfile.read(folder / spec["prompt_wav_path"], dtype="int16")
        fields["prompt"] = Prompt(digest="", clip=clip, text=spec["prompt_text"])
    request = SynthRequest(text=spec["target_text"], **fields)
    return Case(request, spec["seed"], spec["tokens"], arrays["feat"], arrays["wav"])


@pytest.fixture(scope="session")
def golden_network(reference_data: Path) -> VoxCPM2:
    """The golden checkpoint in float32."""
    return load_network(CheckpointFiles.find(reference_data / "tiny"), dtype="float32")


@pytest.fixture
def golden_model(golden_network: VoxCPM2, reference_data: Path) -> VoxCPM2SlotModel:
    """The golden checkpoint with open lanes."""
    model = VoxCPM2SlotModel(golden_network, TextTokenizer(reference_data / "tiny" / "tokenizer.json"))
    model.open(8, 512)
    return model
