"""Checkpoints to measure on: the embedded one, and random weights in larger shapes."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.random_checkpoint import CONFIG, character_tokenizer, weight
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.hub import default_checkpoint
from voxr_ray.voxcpm2.weights import TensorTable, tensor_table

_HEAD = 64
_LOCAL = {"hidden_dim": 512, "ffn_dim": 2048, "num_heads": 8, "num_layers": 4, "kv_channels": _HEAD}
_LOCAL_2B = {"hidden_dim": 1024, "ffn_dim": 4096, "num_heads": 16, "num_layers": 12, "kv_channels": 128}


def _no_scaling(head: int, original: int) -> dict[str, Any]:
    """Rope factors of a head of that size that change nothing."""
    ones = [1.0] * (head // 2)
    return {
        "type": "longrope",
        "long_factor": ones,
        "short_factor": ones,
        "original_max_position_embeddings": original,
    }


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
            "rope_scaling": _no_scaling(_HEAD, 4096),
        },
        "residual_lm_num_layers": 3,
        "scalar_quantization_latent_dim": 256,
        "feat_dim": 64,
        "encoder_config": _LOCAL,
        "dit_config": _LOCAL,
        "audio_vae_config": {"encoder_dim": 32, "latent_dim": 64, "decoder_dim": 512},
    },
    # The shape of the published model. Its rope factors change numbers and not times, so they are left at one.
    "2b": {
        "lm_config": {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "num_hidden_layers": 28,
            "kv_channels": 128,
            "max_position_embeddings": 32768,
            "vocab_size": 73448,
            "rope_scaling": _no_scaling(128, 32768),
        },
        "residual_lm_num_layers": 8,
        "scalar_quantization_latent_dim": 512,
        "feat_dim": 64,
        "encoder_config": _LOCAL_2B,
        "dit_config": _LOCAL_2B,
        "audio_vae_config": {
            "encoder_dim": 128,
            "encoder_rates": [2, 5, 8, 8],
            "latent_dim": 64,
            "decoder_dim": 2048,
            "decoder_rates": [8, 6, 5, 2, 2, 2],
            "sr_bin_boundaries": [20000, 30000, 40000],
            "out_sample_rate": 48000,
        },
        "dtype": "bfloat16",
    },
}
"""Sizes by name, as changes to the random default checkpoint's configuration."""

_BLOCK = 1 << 20
"""Random numbers that are drawn; larger tensors repeat them."""


def configuration(size: str) -> dict[str, Any]:
    """The ``config.json`` of a size."""
    changes = SIZES[size]
    if changes is None:
        text = (default_checkpoint() / "config.json").read_text(encoding="utf-8")
        return dict(json.loads(text))
    config: dict[str, Any] = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    return config


def checkpoint(size: str) -> Path:
    """The folder of a size; random weights are written once to the machine's temporary folder."""
    if SIZES[size] is None:
        return default_checkpoint()
    config = configuration(size)
    model = ModelConfig.model_validate(config)
    folder = Path(tempfile.gettempdir()) / f"voxr-benchmark-{size}"
    if not (folder / "config.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        dtype = torch.bfloat16 if model.dtype == "bfloat16" else torch.float32
        tables = tensor_table(model)
        write_random(folder / "model.safetensors", tables[0], dtype, seed=1)
        write_random(folder / "audiovae.safetensors", tables[1], torch.float32, seed=2)
        character_tokenizer(model.lm_config.vocab_size).save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "LlamaTokenizerFast", "unk_token": "<unk>"}), encoding="utf-8"
        )
        # Last: a folder with a configuration counts as complete.
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_random(path: Path, table: TensorTable, dtype: torch.dtype, *, seed: int) -> None:
    """Write random weights as safetensors, one tensor at a time: the largest size would not fit memory twice.

    They are scaled as :func:`~scripts.random_checkpoint.weight` says.
    """
    block = np.random.default_rng(seed).standard_normal(_BLOCK, dtype=np.float32)
    name_of = {torch.float32: "F32", torch.bfloat16: "BF16"}
    header: dict[str, Any] = {}
    end = 0
    for name, shape in table.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": name_of[dtype], "shape": list(shape), "data_offsets": [start, end]}
    told = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for name, shape in table.items():
            tensor = _random(name, shape, block).to(dtype)
            file.write(tensor.contiguous().view(torch.uint8).numpy().data)


def _random(name: str, shape: tuple[int, ...], block: np.ndarray) -> torch.Tensor:
    """One tensor."""
    if name.endswith("sr_bin_boundaries"):
        return torch.arange(1, math.prod(shape) + 1) * 10_000.0
    return torch.from_numpy(weight(name, np.resize(block, shape)))
