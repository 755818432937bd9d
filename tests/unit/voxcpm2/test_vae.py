"""The AudioVAE's promise: any cut and any company give the same bits, and a call never writes into a state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoints import VARIANTS, variant_config
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.vae import AudioVAE, Causal, DepthwiseConv, State


def random_vae(name: str) -> AudioVAE:
    vae = AudioVAE(ModelConfig.model_validate(variant_config(name)).audio_vae_config)
    generator = torch.Generator().manual_seed(7)
    for parameter in vae.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return vae.requires_grad_(False)


VAES = {name: random_vae(name) for name in VARIANTS}


def run(stack: Causal, x: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    state: State = stack.new_state(x.shape[0])
    outputs = []
    for piece in torch.tensor_split(x, sorted({cut for cut in cuts if 0 < cut < x.shape[1]}), dim=1):
        out, state = stack(piece, state)
        outputs.append(out)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=15)
@given(frames=st.integers(1, 24), cuts=st.lists(st.integers(1, 23), max_size=6), rows=st.integers(1, 5))
def test_decoder_bits_depend_on_neither_cut_nor_company(name: str, frames: int, cuts: list[int], rows: int) -> None:
    """F2, for every way of writing the network."""
    vae = VAES[name]
    x = torch.randn(rows, frames, vae.config.latent_dim, generator=torch.Generator().manual_seed(frames))
    whole = run(vae.decoder, x, [])
    assert torch.equal(run(vae.decoder, x, cuts), whole)
    for row in range(rows):
        assert torch.equal(run(vae.decoder, x[row : row + 1], cuts), whole[row : row + 1])


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=15)
@given(frames=st.integers(1, 12), cuts=st.lists(st.integers(1, 11), max_size=5))
def test_encoder_bits_do_not_depend_on_the_cut(name: str, frames: int, cuts: list[int]) -> None:
    vae = VAES[name]
    hop = vae.config.encoder_hop
    samples = torch.randn(1, frames * hop, 1, generator=torch.Generator().manual_seed(frames))
    whole = run(vae.encoder, samples, [])
    assert whole.shape == (1, frames, vae.config.latent_dim)
    assert torch.equal(run(vae.encoder, samples, [cut * hop for cut in cuts]), whole)


@pytest.mark.parametrize("name", VARIANTS)
def test_both_halves_are_causal(name: str) -> None:
    """Later input changes no earlier output."""
    vae = VAES[name]
    x = torch.randn(1, 10, vae.config.latent_dim, generator=torch.Generator().manual_seed(1))
    changed = x.clone()
    changed[:, 6:] += 1.0
    before, after = run(vae.decoder, x, []), run(vae.decoder, changed, [])
    kept = 6 * vae.config.decoder_hop
    assert torch.equal(before[:, :kept], after[:, :kept])
    assert not torch.equal(before[:, kept:], after[:, kept:])


def test_a_call_leaves_its_state_alone() -> None:
    """A decode that fails half-way must be repeatable, so states are replaced and never written."""
    vae = VAES["concat_condition"]
    x = torch.randn(2, 4, vae.config.latent_dim, generator=torch.Generator().manual_seed(2))
    _, state = vae.decode(x, vae.decoder.new_state(2))
    kept = [tail.clone() for tail in state]
    first, _ = vae.decode(x, state)
    assert all(torch.equal(one, other) for one, other in zip(state, kept, strict=True))
    assert torch.equal(vae.decode(x, state)[0], first)


def test_depthwise_convolution_is_torchs() -> None:
    stage = DepthwiseConv(6, kernel=7, dilation=3)
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(6, 1, 7, generator=generator), torch.randn(6, generator=generator)
    stage.load(weight, bias)
    x = torch.randn(2, 20, 6, generator=generator)
    out, _ = stage(x, torch.zeros(2, stage.tail, 6))
    padded = torch.nn.functional.pad(x.transpose(1, 2), (18, 0))
    expected = torch.nn.functional.conv1d(padded, weight, bias, dilation=3, groups=6).transpose(1, 2)
    assert torch.allclose(out, expected, atol=1e-5)
