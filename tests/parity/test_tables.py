"""The published 2B checkpoint: every tensor by name and shape, and a network of that size."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.weights import Recorder, load, tensor_table


def published(reference_data: Path) -> ModelConfig:
    return ModelConfig.model_validate_json((reference_data / "voxcpm2_2b_config.json").read_text())


def test_tables_are_the_published_ones(reference_data: Path) -> None:
    model, vae = tensor_table(published(reference_data))
    expected = json.loads((reference_data / "voxcpm2_2b_tensors.json").read_text())
    assert {name: list(shape) for name, shape in model.items()} == expected["model.safetensors"]
    assert {name: list(shape) for name, shape in vae.items()} == expected["audiovae.pth"]
    assert (len(model), len(vae)) == (577, 312)


def test_the_2b_network_builds_on_the_meta_device(reference_data: Path) -> None:
    with torch.device("meta"):
        network = VoxCPM2(published(reference_data))
    load(network, Recorder(), Recorder())
    parameters = list(network.parameters())
    assert all(parameter.is_meta for parameter in parameters)
    assert 2.0e9 < sum(parameter.numel() for parameter in parameters) < 2.6e9
