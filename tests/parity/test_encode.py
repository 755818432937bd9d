"""Recordings of many kinds give the official features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.rendering import finish
from voxr_ray.audio import decode_recording, to_pcm16
from voxr_ray.engine.model import Padding
from voxr_ray.voxcpm2.lanes import round_up
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel

FILES = (
    "mono_16k_pcm16.wav",
    "mono_8k_pcm16.wav",
    "stereo_44k1_pcm24.wav",
    "mono_48k_float.wav",
    "mono_22k05_double.wav",
    "stereo_48k.flac",
    "mono_16k_u8.wav",
)
RATE_HZ = 16_000


def official(folder: Path, name: str, padding: Padding) -> np.ndarray:
    return np.load(folder / "features.npz")[f"{name}|{padding.value}"]


@pytest.mark.parametrize("padding", list(Padding))
@pytest.mark.parametrize("name", FILES)
def test_features(golden_network: VoxCPM2, reference_data: Path, name: str, padding: Padding) -> None:
    folder = reference_data / "encode"
    samples = decode_recording((folder / name).read_bytes(), RATE_HZ, max_seconds=60)
    expected = official(folder, name, padding)
    assert list(expected.shape) == json.loads((folder / "shapes.json").read_text())[name]
    whole = round_up(len(samples), 4 * golden_network.config.audio_vae_config.encoder_hop)
    missing = whole - len(samples)
    padded = np.pad(samples, (missing, 0) if padding is Padding.LEFT else (0, missing))
    vae = golden_network.audio_vae
    with torch.inference_mode():
        frames, _ = vae.encode(torch.from_numpy(padded)[None], vae.encoder.new_state(1))
    assert np.abs(frames.numpy().reshape(expected.shape) - expected).max() <= 1e-4


@pytest.mark.parametrize("padding", list(Padding))
@pytest.mark.parametrize("name", FILES)
def test_features_of_a_sixteen_bit_clip(
    golden_model: VoxCPM2SlotModel, reference_data: Path, name: str, padding: Padding
) -> None:
    """What crosses to the replica is 16-bit: exact for 16-bit sources, nearly the same for finer ones."""
    folder = reference_data / "encode"
    clip = to_pcm16(decode_recording((folder / name).read_bytes(), RATE_HZ, max_seconds=60))
    got = finish(golden_model.encode(clip, padding))
    expected = official(folder, name, padding)
    assert got.shape == expected.shape
    assert got.dtype == np.float32
    tolerance = 1e-4 if "pcm16" in name and "16k" in name else 2e-2
    assert np.abs(got - expected).max() <= tolerance
