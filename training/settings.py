"""The network that is trained: its ``config.json``, and what ``voxr.json`` says of it."""

from __future__ import annotations

from typing import Any

LATENT_DIM = 48
PATCH_SIZE = 4
HEAD_DIM = 64
VOCABULARY = 512

NAME = "voxr"
NOTICE = (
    "the embedded default voice is a small demonstration model trained on synthetic speech: English, short sentences, "
    "not for production"
)
DEFAULTS = {"cfg_value": 3.0, "retry_badcase_ratio_threshold": 1.5}
"""Guidance that this model speaks best with; it never needs one patch and a half a token, so such a take is bad."""

MAX_PART_CHARS = 70
"""Longest text that it says reliably in one piece: some twelve words."""

CONFIG: dict[str, Any] = {
    "architecture": "voxcpm2",
    "lm_config": {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": 256,
        "intermediate_size": 768,
        "max_position_embeddings": 4096,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000,
        "kv_channels": HEAD_DIM,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0] * (HEAD_DIM // 2),
            "short_factor": [1.0] * (HEAD_DIM // 2),
            "original_max_position_embeddings": 4096,
        },
        "vocab_size": VOCABULARY,
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
    },
    "patch_size": PATCH_SIZE,
    "feat_dim": LATENT_DIM,
    "scalar_quantization_latent_dim": 96,
    "scalar_quantization_scale": 9,
    "residual_lm_num_layers": 1,
    "residual_lm_no_rope": False,
    "encoder_config": {"hidden_dim": 128, "ffn_dim": 256, "num_heads": 4, "num_layers": 1, "kv_channels": HEAD_DIM},
    "dit_config": {
        "hidden_dim": 192,
        "ffn_dim": 512,
        "num_heads": 4,
        "num_layers": 3,
        "kv_channels": HEAD_DIM,
        "mean_mode": False,
        "cfm_config": {"sigma_min": 1e-06, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0},
    },
    "audio_vae_config": {
        "encoder_dim": 16,
        "encoder_rates": [4, 4, 5, 8],
        "latent_dim": LATENT_DIM,
        "decoder_dim": 256,
        "decoder_rates": [8, 5, 4, 4],
        "depthwise": True,
        "sr_bin_boundaries": None,
        "sample_rate": 16000,
        "out_sample_rate": 16000,
    },
    "max_length": 4096,
    "device": "cpu",
    "dtype": "bfloat16",
}
