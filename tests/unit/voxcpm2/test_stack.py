"""Transformer blocks: what packing changes leaves the results as they were."""

from __future__ import annotations

import pytest
import torch

from tests.checkpoints import VARIANTS, variant_config
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.stack import Stack, rotate, rotate_pairs


def test_pairs_turn_as_halves_do() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 5, 4, 16, generator=generator)
    angles = torch.randn(5, 1, 8, generator=generator)
    interleaved = x.view(3, 5, 4, 2, 8).transpose(-1, -2).reshape(3, 5, 4, 16)
    turned = rotate_pairs(interleaved, torch.polar(torch.ones_like(angles), angles))
    expected = rotate(x, angles.cos(), angles.sin())
    assert torch.allclose(turned.view(3, 5, 4, 8, 2).transpose(-1, -2).reshape(3, 5, 4, 16), expected, atol=1e-6)


@torch.inference_mode()
def test_narrow_heads_are_turned_in_float32() -> None:
    x = torch.randn(2, 3, 1, 8).to(torch.bfloat16)
    assert rotate_pairs(x, torch.ones(3, 1, 4, dtype=torch.complex64)).equal(x.float())


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@torch.inference_mode()
def test_a_packed_stack_gives_the_same(variant: str) -> None:
    config = ModelConfig.model_validate(variant_config(variant))
    stack = Stack(config.lm_config)
    generator = torch.Generator().manual_seed(2)
    for parameter in stack.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    x = torch.randn(2, 7, config.lm_config.hidden_size, generator=generator)
    before = stack.local(x, slice(0, 7))
    for _ in range(2):
        stack.pack()  # the second time changes nothing
        assert torch.allclose(stack.local(x, slice(0, 7)), before, atol=1e-5)
