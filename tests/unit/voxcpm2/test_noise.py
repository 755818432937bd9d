"""Noise: upstream's draws, from a generator of one's own."""

from __future__ import annotations

import pytest
import torch

from voxr_ray.voxcpm2.noise import NoiseStream


@pytest.mark.parametrize(("feat_dim", "patch_size"), [(64, 4), (16, 4), (32, 4), (12, 2), (20, 4), (5, 3)])
def test_draws_are_upstreams(feat_dim: int, patch_size: int) -> None:
    """One draw a patch, whether or not several are made ahead."""
    stream = NoiseStream(11, feat_dim=feat_dim, patch_size=patch_size)
    generator = torch.Generator().manual_seed(11)
    for _ in range(20):
        expected = torch.randn((1, feat_dim, patch_size), generator=generator)[0].T
        assert torch.equal(stream.next(), expected)


def test_streams_leave_each_other_and_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    alone = NoiseStream(3, feat_dim=16, patch_size=4)
    expected = [alone.next() for _ in range(12)]
    one, other = (NoiseStream(seed, feat_dim=16, patch_size=4) for seed in (3, 4))
    for patch in expected:
        other.next()
        assert torch.equal(one.next(), patch)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_largest_seed() -> None:
    assert NoiseStream(2**32 - 1, feat_dim=16, patch_size=4).next().shape == (4, 16)
