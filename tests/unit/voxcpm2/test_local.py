"""The local networks: what is computed once for all Euler steps is what each of them would have computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.checkpoints import VARIANTS, variant_config
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.local import LocDiT
from voxr_ray.voxcpm2.ops import Linear, RMSNorm
from voxr_ray.voxcpm2.stack import Stack


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def estimator(variant: str, dtype: torch.dtype) -> LocDiT:
    config = ModelConfig.model_validate(variant_config(variant))
    dit = LocDiT(config.dit_lm, feat_dim=config.feat_dim, patch_size=config.patch_size)
    for parameter in dit.parameters():
        parameter.data = (draw(*parameter.shape) / parameter.shape[-1] ** 0.5).to(dtype)
    dit.requires_grad_(False)
    for module in dit.modules():
        if isinstance(module, Stack | Linear | RMSNorm):
            module.pack()
    return dit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("variant", sorted(VARIANTS))
@torch.inference_mode()
def test_known_projections_keep_every_bit(variant: str, rows: int, dtype: torch.dtype) -> None:
    """The whole sequence through every block gives what the same with tokens projected beforehand gives."""
    dit = estimator(variant, dtype)
    noisy = draw(rows, dit.patch_size, dit.in_proj.inputs, dtype=dtype)
    mu = draw(2 * rows, 2, dit.hidden, dtype=dtype)
    condition = draw(2 * rows, dit.patch_size, dit.hidden, dtype=dtype)
    time = dit.time_tokens(torch.tensor([0.7, 0.2]), torch.zeros(2))[1].view(1, 1, -1)
    frames = dit.in_proj(noisy).repeat(2, 1, 1)
    sequence = torch.cat((mu, time.expand(2 * rows, 1, -1), condition, frames), dim=1)
    whole = dit.out_proj(dit.decoder.local(sequence, slice(-dit.patch_size, None)))
    assert torch.equal(dit(noisy, *(dit.tokens(known) for known in (mu, time, condition))), whole)
