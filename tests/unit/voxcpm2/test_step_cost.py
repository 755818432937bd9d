"""The floor of a step, compared with the figures of the published model and with the network itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.checkpoints import VARIANTS, variant_config
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.step_cost import lane_bytes_per_position, stack_weights, step_cost


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_of_stacks_are_the_networks(name: str) -> None:
    config = ModelConfig.model_validate(variant_config(name))
    with torch.device("meta"):
        network = VoxCPM2(config)
    for stack in (network.base_lm, network.residual_lm, network.feat_encoder.encoder):
        held = sum(each.numel() for layer in stack.blocks() for each in layer.parameters())
        assert stack_weights(stack.config) == held
    # Ten percent: normalisation and biases are not counted in the decoder.
    cost = step_cost(config, solver_calls=9, length=64, weight_bytes=2, cache_bytes=2)
    decoder = sum(part.weights for part in cost.parts if part.name.startswith("AudioVAE"))
    held = sum(each.numel() for each in network.audio_vae.decoder.parameters())
    assert 0.6 * held < decoder <= held


def test_a_lane_is_what_the_caches_take() -> None:
    config = ModelConfig.model_validate(variant_config("concat_condition"))
    with torch.device("meta"):
        network = VoxCPM2(config)
        caches = [
            *network.base_lm.new_cache(1, 64, dtype=torch.float32, device=torch.device("meta")),
            *network.residual_lm.new_cache(1, 64, dtype=torch.float32, device=torch.device("meta")),
        ]
    held = sum((cache.key.numel() + cache.value.numel()) * 4 for cache in caches)
    assert lane_bytes_per_position(config, 4) * 64 == held


def test_the_published_model(reference_data: Path) -> None:
    """Known of it: 1.32 and 0.38 G parameters in the language models, 7.6 GB read by a step of one row."""
    config = ModelConfig.model_validate(json.loads((reference_data / "voxcpm2_2b_config.json").read_text()))
    assert stack_weights(config.lm_config) == pytest.approx(1.32e9, rel=0.01)
    assert stack_weights(config.residual_lm) == pytest.approx(0.38e9, rel=0.01)
    cost = step_cost(config, solver_calls=9, length=256, weight_bytes=2, cache_bytes=2)
    assert cost.bytes_moved(1) == pytest.approx(7.7e9, rel=0.05)
    assert cost.operations(64) == pytest.approx(5.5e12, rel=0.1)


def test_the_floor_is_the_larger_of_bytes_and_operations() -> None:
    config = ModelConfig.model_validate(variant_config("concat_condition"))
    cost = step_cost(config, solver_calls=9, length=64, weight_bytes=4, cache_bytes=4)
    by_bytes = cost.floor_s(1, bytes_per_s=1.0, operations_per_s=1e30)
    by_operations = cost.floor_s(1, bytes_per_s=1e30, operations_per_s=1.0)
    assert by_bytes == pytest.approx(cost.bytes_moved(1))
    assert by_operations == pytest.approx(cost.operations(1))
    both = cost.floor_s(1, bytes_per_s=1.0, operations_per_s=1.0)
    assert max(by_bytes, by_operations) <= both <= by_bytes + by_operations
    # More rows never cost less, and weights are read once for all of them.
    assert cost.bytes_moved(16) < 16 * cost.bytes_moved(1)
    assert cost.operations(16) == 16 * cost.operations(1)
