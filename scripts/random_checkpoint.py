"""Build a checkpoint with random weights in the official layout: what tests and benchmarks need, which does not speak.

The numbers come from numpy's generator, so the files are the same bytes on every machine.

    python scripts/random_checkpoint.py FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from tokenizers import AddedToken, Tokenizer, models, normalizers

from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.weights import TensorTable, tensor_table

SEED = 20260101
AUDIO_TOKENS = {101: "<|audio_start|>", 102: "<|audio_end|>", 103: "<|ref_audio_start|>", 104: "<|ref_audio_end|>"}
FIRST_CHARACTER = 105
WORD_START = "▁"
HEAD_DIM = 32

NOTICE = "this checkpoint has random weights: it proves the pipeline and does not speak"

CONFIG: dict[str, Any] = {
    "architecture": "voxcpm2",
    "lm_config": {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 128,
        "intermediate_size": 320,
        "max_position_embeddings": 4096,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "kv_channels": HEAD_DIM,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0] * (HEAD_DIM // 2),
            "short_factor": [1.0] * (HEAD_DIM // 2),
            "original_max_position_embeddings": 4096,
        },
        "vocab_size": 512,
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
    },
    "patch_size": 4,
    "feat_dim": 32,
    "scalar_quantization_latent_dim": 64,
    "scalar_quantization_scale": 9,
    "residual_lm_num_layers": 1,
    "residual_lm_no_rope": True,
    "encoder_config": {"hidden_dim": 96, "ffn_dim": 192, "num_heads": 4, "num_layers": 1, "kv_channels": HEAD_DIM},
    "dit_config": {
        "hidden_dim": 128,
        "ffn_dim": 320,
        "num_heads": 4,
        "num_layers": 2,
        "kv_channels": HEAD_DIM,
        "mean_mode": False,
        "cfm_config": {"sigma_min": 1e-06, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0},
    },
    "audio_vae_config": {
        "encoder_dim": 8,
        "encoder_rates": [4, 4, 5, 8],
        "latent_dim": 32,
        "decoder_dim": 128,
        "decoder_rates": [8, 5, 4, 4],
        "sr_bin_boundaries": None,
        "sample_rate": 16000,
        "out_sample_rate": 16000,
    },
    "max_length": 4096,
    "device": "cpu",
    "dtype": "float32",
}


def random_tensors(table: TensorTable, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights of a table, see :func:`weight`."""
    return {name: weight(name, rng.standard_normal(shape, dtype=np.float32)) for name, shape in table.items()}


def weight(name: str, drawn: np.ndarray) -> np.ndarray:
    """A weight that keeps the size of what flows through it: ones for norms and gains, fan-in scaling for the rest.

    Args:
        name: Of the tensor.
        drawn: Standard normal numbers in its shape, float32.
    """
    if name.endswith(("norm.weight", "layernorm.weight", "alpha")):
        return np.ones_like(drawn)
    if name.endswith("weight_g"):
        # The last convolution, to one channel, sets the loudness: noise had better be quiet.
        return np.full_like(drawn, 0.05 if len(drawn) == 1 else 0.7)
    if name.endswith("bias"):
        return drawn * np.float32(0.02)
    return drawn / np.float32(math.sqrt(math.prod(drawn.shape[1:])))


def character_tokenizer(vocab_size: int) -> Tokenizer:
    """One token a printable ASCII character, from id 105; everything else is spelled in bytes."""
    special = {0: "<unk>", 1: "<s>", 2: "</s>", **AUDIO_TOKENS}
    names = [special.get(index, f"<|reserved_{index}|>") for index in range(FIRST_CHARACTER)]
    names += [WORD_START, *map(chr, range(ord("!"), ord("~") + 1))]
    names += [f"<0x{byte:02X}>" for byte in range(256)]
    if len(names) > vocab_size:
        raise SystemExit(f"{len(names)} tokens do not fit a vocabulary of {vocab_size}")
    vocab = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))  # noqa: S106
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_START), normalizers.Replace(" ", WORD_START)])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special.values()])
    return tokenizer


def build(folder: Path) -> None:
    """Write all files of the checkpoint into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    config = ModelConfig.model_validate(CONFIG)
    rng = np.random.default_rng(SEED)
    for name, table in zip(("model.safetensors", "audiovae.safetensors"), tensor_table(config), strict=True):
        safetensors.numpy.save_file(random_tensors(table, rng), folder / name)
    character_tokenizer(config.lm_config.vocab_size).save(str(folder / "tokenizer.json"))
    write_side_files(folder, CONFIG, {"name": "random", "notice": NOTICE})


def write_side_files(folder: Path, config: dict[str, Any], own: dict[str, Any]) -> None:
    """Write what stands beside weights and tokenizer: the configurations, and what the checkpoint says of itself."""
    side_files = {
        "config.json": config,
        "tokenizer_config.json": {
            "tokenizer_class": "LlamaTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "add_bos_token": True,
            "add_eos_token": False,
        },
        "voxr.json": own,
    }
    for name, content in side_files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build a checkpoint with random weights.")
    parser.add_argument("folder", type=Path, help="where to write it")
    target = parser.parse_args().folder
    build(target)
    for written in sorted(target.iterdir()):
        print(f"{written.stat().st_size:>9,} {written}")
