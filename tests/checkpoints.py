"""Checkpoints that tests make: the official layout with random weights, in shapes the published ones do not have."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from scripts.random_checkpoint import CONFIG, character_tokenizer, random_tensors
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.weights import tensor_table

Changes = dict[str, Any]

_SMALL: Changes = {
    "lm_config": {"hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2, "kv_channels": 12},
    "encoder_config": {"hidden_dim": 36, "ffn_dim": 48, "num_heads": 4, "num_layers": 2, "kv_channels": 12},
    "dit_config": {"hidden_dim": 24, "ffn_dim": 40, "num_heads": 4, "num_layers": 2, "kv_channels": 12},
    "audio_vae_config": {"encoder_dim": 4, "decoder_dim": 32},
}
_FACTORS = {
    "type": "longrope",
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "original_max_position_embeddings": 512,
}

VARIANTS: dict[str, Changes] = {
    # Heads sized by division, an odd patch size, one key head, no use_mup key at all (which means true).
    "divided_heads_mup": {
        "patch_size": 3,
        "lm_config": {
            "kv_channels": None,
            "num_key_value_heads": 1,
            "num_attention_heads": 4,
            "use_mup": None,
            "max_position_embeddings": 512,
            "rope_scaling": _FACTORS,
        },
        "encoder_config": {"kv_channels": None, "num_heads": 3},
        "dit_config": {"kv_channels": None, "num_heads": 2},
    },
    # Long factors with scaled tables, a residual LM with rope, an output rate between two bins.
    "long_rope_rate_bins": {
        "residual_lm_no_rope": False,
        "residual_lm_num_layers": 2,
        "lm_config": {"max_position_embeddings": 2048, "rope_scaling": _FACTORS},
        "audio_vae_config": {
            "decoder_rates": [8, 6, 5, 2],
            "sr_bin_boundaries": [8000, 10000, 30000],
            "out_sample_rate": 12000,
            "cond_type": "scale_bias_init",
        },
    },
    # Full convolutions, odd strides, an additive condition, the mean mode of the DiT.
    "dense_vae_add_mean": {
        "feat_dim": 20,
        "dit_config": {"dit_mean_mode": True},
        "lm_config": {"rope_scaling": _FACTORS, "max_position_embeddings": 512},
        "audio_vae_config": {
            "latent_dim": 20,
            "depthwise": False,
            "encoder_rates": [3, 5, 4],
            "decoder_rates": [4, 5, 3],
            "sr_bin_boundaries": [8000],
            "out_sample_rate": 16000,
            "cond_type": "add",
            "cond_out_layer": True,
        },
    },
    # A condition that is concatenated, and latents whose noise cannot be drawn ahead.
    "concat_condition": {
        "patch_size": 2,
        "feat_dim": 12,
        "lm_config": {"rope_scaling": _FACTORS, "max_position_embeddings": 512},
        "audio_vae_config": {
            "latent_dim": 12,
            "encoder_rates": [2, 5],
            "decoder_rates": [5, 2],
            "sr_bin_boundaries": [8000, 15000],
            "cond_type": "concat",
            "cond_dim": 6,
            "cond_out_layer": True,
        },
    },
}
"""Configurations by what is unusual about them, as changes to the default checkpoint's."""


def changed_config(*changes: Changes) -> Changes:
    """The default configuration with sections updated; a value of ``None`` removes the key."""
    config: Changes = copy.deepcopy(CONFIG)
    for change in changes:
        for key, value in change.items():
            if isinstance(value, dict):
                section = {**config.get(key, {}), **value}
                config[key] = {name: item for name, item in section.items() if item is not None}
            else:
                config[key] = value
    return config


def variant_config(name: str) -> Changes:
    """The configuration of a variant."""
    return changed_config(_SMALL, {"lm_config": {"rope_scaling": _FACTORS}}, VARIANTS[name])


def write_checkpoint(folder: Path, config: Changes, *, seed: int = 1) -> Path:
    """Write a checkpoint with random weights; the same numbers for the same configuration and seed everywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    model = ModelConfig.model_validate(config)
    rng = np.random.default_rng(seed)
    for name, table in zip(("model.safetensors", "audiovae.safetensors"), tensor_table(model), strict=True):
        tensors = random_tensors(table, rng)
        boundaries = model.audio_vae_config.sr_bin_boundaries
        if "decoder.sr_bin_boundaries" in tensors:
            tensors["decoder.sr_bin_boundaries"] = np.array(boundaries, dtype=np.int32)
        safetensors.numpy.save_file(tensors, folder / name)
    character_tokenizer(model.lm_config.vocab_size).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer_config = {"tokenizer_class": "LlamaTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    return folder
