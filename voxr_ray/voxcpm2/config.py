"""The published ``config.json`` of a VoxCPM2 checkpoint, validated.

Field names are the file's. Keys that inference does not read (``max_length``, ``device``, training settings) are
ignored; everything else is checked here, so that no later module meets an impossible shape.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from voxr_ray.errors import CheckpointError

ARCHITECTURE = "voxcpm2"


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RopeScaling(_Section):
    """LongRoPE factors, one per pair of rotated dimensions."""

    long_factor: list[float]
    short_factor: list[float]
    original_max_position_embeddings: PositiveInt


class LMConfig(_Section):
    """A stack of MiniCPM4 blocks; also the pattern from which the local stacks are derived."""

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    max_position_embeddings: PositiveInt
    num_attention_heads: PositiveInt
    num_hidden_layers: PositiveInt
    num_key_value_heads: PositiveInt
    rms_norm_eps: float
    rope_scaling: RopeScaling
    rope_theta: float = 10000.0
    vocab_size: int = Field(ge=0)
    use_mup: bool = True
    scale_emb: float
    dim_model_base: int
    scale_depth: float
    kv_channels: PositiveInt | None = None
    no_rope: bool = False

    @property
    def head_dim(self) -> int:
        """Numbers in one attention head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def residual_scale(self) -> float:
        """Factor on every residual branch.

        Source: OpenBMB/VoxCPM, ``MiniCPMDecoderLayer``.
        """
        return self.scale_depth / math.sqrt(self.num_hidden_layers) if self.use_mup else 1.0

    @property
    def embedding_scale(self) -> float:
        """Factor on text embeddings."""
        return self.scale_emb if self.use_mup else 1.0

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.kv_channels is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if not self.no_rope:
            if self.head_dim % 2:
                raise ValueError(f"head size {self.head_dim} is odd and cannot be rotated in pairs")
            for name in ("long_factor", "short_factor"):
                count = len(getattr(self.rope_scaling, name))
                if count != self.head_dim // 2:
                    raise ValueError(f"rope_scaling.{name} has {count} values, a head of {self.head_dim} needs half")
        return self


class LocalConfig(_Section):
    """What the local encoder and the local DiT set themselves; the rest they take from the LM."""

    hidden_dim: PositiveInt
    ffn_dim: PositiveInt
    num_heads: PositiveInt
    num_layers: PositiveInt
    kv_channels: PositiveInt | None = None


class DiTConfig(LocalConfig):
    """Local DiT. The published files also carry ``mean_mode``, which upstream ignores."""

    dit_mean_mode: bool = False


class VAEConfig(_Section):
    """AudioVAE: causal encoder at ``sample_rate``, causal decoder at ``out_sample_rate``. Defaults are upstream's."""

    encoder_dim: PositiveInt = 128
    encoder_rates: list[PositiveInt] = Field(default=[2, 5, 8, 8], min_length=1)
    latent_dim: PositiveInt = 64
    decoder_dim: PositiveInt = 2048
    decoder_rates: list[PositiveInt] = Field(default=[8, 6, 5, 2, 2, 2], min_length=1)
    depthwise: bool = True
    sample_rate: PositiveInt = 16000
    out_sample_rate: PositiveInt = 48000
    use_noise_block: Literal[False] = False
    sr_bin_boundaries: list[int] | None = [20000, 30000, 40000]
    cond_type: Literal["scale_bias", "scale_bias_init", "add", "concat"] = "scale_bias"
    cond_dim: PositiveInt = 128
    cond_out_layer: bool = False

    @property
    def encoder_hop(self) -> int:
        """Input samples of one latent frame."""
        return math.prod(self.encoder_rates)

    @property
    def decoder_hop(self) -> int:
        """Output samples of one latent frame."""
        return math.prod(self.decoder_rates)

    @property
    def sample_rate_bin(self) -> int:
        """Index of the output rate among the boundaries: the number of boundaries below it."""
        return bisect_left(self.sr_bin_boundaries or [], self.out_sample_rate)

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.decoder_dim % 2 ** len(self.decoder_rates):
            raise ValueError(
                f"decoder_dim {self.decoder_dim} cannot be halved {len(self.decoder_rates)} times without a remainder"
            )
        if self.cond_type == "concat" and not self.cond_out_layer:
            raise ValueError("cond_type concat needs cond_out_layer")
        return self


class ModelConfig(_Section):
    """A whole checkpoint."""

    architecture: str
    lm_config: LMConfig
    patch_size: PositiveInt = 4
    feat_dim: PositiveInt = 64
    residual_lm_num_layers: PositiveInt = 8
    residual_lm_no_rope: bool = False
    scalar_quantization_latent_dim: PositiveInt = 512
    scalar_quantization_scale: float = 9
    encoder_config: LocalConfig
    dit_config: DiTConfig
    audio_vae_config: VAEConfig = VAEConfig()
    dtype: str = "bfloat16"

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.architecture.lower() != ARCHITECTURE:
            raise ValueError(f"architecture is {self.architecture!r}, only {ARCHITECTURE!r} is supported")
        if self.audio_vae_config.latent_dim != self.feat_dim:
            raise ValueError(
                f"audio_vae_config.latent_dim {self.audio_vae_config.latent_dim} differs from feat_dim {self.feat_dim}"
            )
        if self.lm_config.vocab_size <= 104:
            raise ValueError(f"vocab_size {self.lm_config.vocab_size} leaves no room for the audio tokens 101 to 104")
        self.encoder_lm, self.dit_lm, self.residual_lm  # noqa: B018 - derived sections validate themselves
        return self

    @property
    def residual_lm(self) -> LMConfig:
        """The residual LM: the base LM with its own depth and without embeddings."""
        return self._derive(num_hidden_layers=self.residual_lm_num_layers, no_rope=self.residual_lm_no_rope)

    @property
    def encoder_lm(self) -> LMConfig:
        """The local encoder's stack."""
        return self._local(self.encoder_config)

    @property
    def dit_lm(self) -> LMConfig:
        """The local DiT's stack."""
        return self._local(self.dit_config)

    def _local(self, local: LocalConfig) -> LMConfig:
        return self._derive(
            hidden_size=local.hidden_dim,
            intermediate_size=local.ffn_dim,
            num_attention_heads=local.num_heads,
            num_hidden_layers=local.num_layers,
            kv_channels=local.kv_channels,
        )

    def _derive(self, **changes: object) -> LMConfig:
        return LMConfig.model_validate({**self.lm_config.model_dump(), "vocab_size": 0, **changes})


def load_config(folder: Path) -> ModelConfig:
    """Read and validate ``config.json`` of a checkpoint folder.

    Raises:
        CheckpointError: The file is missing, is not JSON, or describes a network that cannot be built. One line names
            the first field at fault.
    """
    path = folder / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as err:
        raise CheckpointError(f"cannot read {path}: {err.strerror or err}") from err
    try:
        return ModelConfig.model_validate_json(text)
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CheckpointError(f"{path}: {where}: {first['msg']}") from err
