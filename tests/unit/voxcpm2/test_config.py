"""The published configuration file, and what is refused of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import changed_config
from voxr_ray.errors import CheckpointError
from voxr_ray.voxcpm2.config import ModelConfig, load_config


def test_published_configuration(reference_data: Path) -> None:
    config = ModelConfig.model_validate_json((reference_data / "voxcpm2_2b_config.json").read_text())
    assert (config.lm_config.head_dim, config.encoder_lm.head_dim, config.dit_lm.head_dim) == (128, 128, 128)
    # The local stacks have heads of their own but the LM's key heads.
    assert config.encoder_lm.num_key_value_heads == config.dit_lm.num_key_value_heads == 2
    assert config.residual_lm.num_hidden_layers == 8
    assert config.residual_lm.no_rope
    assert not config.lm_config.no_rope
    assert config.audio_vae_config.encoder_hop == 640
    assert config.audio_vae_config.decoder_hop == 1920
    assert config.audio_vae_config.sample_rate_bin == 3
    # mean_mode is in the file and ignored; the key upstream reads is dit_mean_mode.
    assert config.dit_config.dit_mean_mode is False


@pytest.mark.parametrize(("use_mup", "scale"), [(None, 1.4 / 2), (True, 1.4 / 2), (False, 1.0)])
def test_a_missing_use_mup_means_true(use_mup: bool | None, scale: float) -> None:
    lm = ModelConfig.model_validate(changed_config({"lm_config": {"use_mup": use_mup}})).lm_config
    assert lm.num_hidden_layers == 4
    assert lm.residual_scale == pytest.approx(scale)
    assert lm.embedding_scale == (12 if use_mup is not False else 1.0)


def test_mup_counts_a_stacks_own_layers() -> None:
    config = ModelConfig.model_validate(changed_config({"lm_config": {"use_mup": True}}))
    assert config.residual_lm.residual_scale == pytest.approx(1.4)
    assert config.dit_lm.residual_scale == pytest.approx(1.4 / 2**0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "voxcpm"}, "only 'voxcpm2' is supported"),
        ({"patch_size": 0}, "patch_size"),
        ({"lm_config": {"hidden_size": "wide"}}, "lm_config.hidden_size"),
        ({"lm_config": {"kv_channels": None, "num_attention_heads": 3}}, "not a multiple of num_attention_heads"),
        ({"lm_config": {"num_key_value_heads": 3}}, "not a multiple of num_key_value_heads"),
        ({"lm_config": {"kv_channels": 31}}, "odd"),
        ({"lm_config": {"kv_channels": 64}}, "rope_scaling"),
        ({"encoder_config": {"kv_channels": 16}}, "rope_scaling"),
        ({"lm_config": {"vocab_size": 100}}, "101 to 104"),
        ({"feat_dim": 16}, "latent_dim"),
        ({"audio_vae_config": {"use_noise_block": True}}, "use_noise_block"),
        ({"audio_vae_config": {"cond_type": "concat"}}, "cond_out_layer"),
        ({"audio_vae_config": {"decoder_dim": 20}}, "decoder_dim"),
        ({"audio_vae_config": {"decoder_rates": []}}, "decoder_rates"),
    ],
)
def test_what_cannot_be_built_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(changed_config(changes)))
    with pytest.raises(CheckpointError, match=said):
        load_config(tmp_path)


def test_one_line_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(CheckpointError) as caught:
        load_config(tmp_path)
    assert "\n" not in str(caught.value)
