"""Checkpoints to measure on: the embedded one, and random weights in larger shapes."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from scripts.random_checkpoint import CONFIG, character_tokenizer, random_tensors
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.hub import default_checkpoint
from voxr_ray.voxcpm2.weights import tensor_table

_HEAD = 64
_LOCAL = {"hidden_dim": 512, "ffn_dim": 2048, "num_heads": 8, "num_layers": 4, "kv_channels": _HEAD}

SIZES: dict[str, dict[str, Any] | None] = {
    "default": None,
    # Language models of 768 with 8 and 3 layers, local networks of 512 with 4, an AudioVAE decoder of 512.
    "100m": {
        "lm_config": {
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "num_hidden_layers": 8,
            "kv_channels": _HEAD,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": [1.0] * (_HEAD // 2),
                "short_factor": [1.0] * (_HEAD // 2),
                "original_max_position_embeddings": 4096,
            },
        },
        "residual_lm_num_layers": 3,
        "scalar_quantization_latent_dim": 256,
        "feat_dim": 64,
        "encoder_config": _LOCAL,
        "dit_config": _LOCAL,
        "audio_vae_config": {"encoder_dim": 32, "latent_dim": 64, "decoder_dim": 512},
    },
}
"""Sizes by name, as changes to the default checkpoint's configuration."""


def checkpoint(size: str) -> Path:
    """The folder of a size; random weights are written once to the machine's temporary folder."""
    changes = SIZES[size]
    if changes is None:
        return default_checkpoint()
    config: dict[str, Any] = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    model = ModelConfig.model_validate(config)
    folder = Path(tempfile.gettempdir()) / f"voxr-benchmark-{size}"
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(1)
        for name, table in zip(("model.safetensors", "audiovae.safetensors"), tensor_table(model), strict=True):
            safetensors.numpy.save_file(random_tensors(table, rng), folder / name)
        character_tokenizer(model.lm_config.vocab_size).save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
