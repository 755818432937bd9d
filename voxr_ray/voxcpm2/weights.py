"""The official tensor names, in one place: :func:`load` asks a source for every tensor by name and shape.

Nothing else knows the names. The table of a checkpoint is what :func:`load` asks for, recorded on the meta device
(:func:`tensor_table`), so that table and loader cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from voxr_ray.voxcpm2.config import ModelConfig, VAEConfig
from voxr_ray.voxcpm2.local import LocDiT, LocEnc, TimeMLP
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.ops import Linear, RMSNorm, joined
from voxr_ray.voxcpm2.stack import Stack
from voxr_ray.voxcpm2.vae import (
    AudioVAE,
    Conv,
    DepthwiseConv,
    Downsample,
    FinalConv,
    RateCondition,
    ResidualUnit,
    Snake,
    Upsample,
)

T = TypeVar("T")

TensorTable: TypeAlias = dict[str, tuple[int, ...]]
"""Tensor names and shapes of one file."""


class Source(Protocol):
    """Where tensors come from."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor of that name, in the dtype and on the device the network is to have it."""
        ...


class Recorder:
    """A source that writes down what it is asked for."""

    def __init__(self) -> None:
        self.table: TensorTable = {}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """An empty tensor on the meta device."""
        self.table[name] = shape
        return torch.empty(shape, device="meta")


def tensor_table(config: ModelConfig) -> tuple[TensorTable, TensorTable]:
    """Names and shapes that a checkpoint of this configuration holds: model file, VAE file."""
    model, vae = Recorder(), Recorder()
    with torch.device("meta"):
        network = VoxCPM2(config)
    load(network, model, vae)
    return model.table, vae.table


def load(network: VoxCPM2, model: Source, vae: Source) -> None:
    """Fill a network from the two files of a checkpoint. Parameters are replaced, so it may be on the meta device."""
    config = network.config
    hidden = config.lm_config.hidden_size
    if network.base_lm.embed_tokens is not None:
        shape = (config.lm_config.vocab_size, hidden)
        network.base_lm.embed_tokens.weight = _parameter(model.take("base_lm.embed_tokens.weight", shape))
    _load_stack(network.base_lm, model, "base_lm")
    _load_stack(network.residual_lm, model, "residual_lm")
    _load_encoder(network.feat_encoder, model)
    _load_dit(network.feat_decoder.estimator, model)
    _load_linear(network.fsq.in_proj, model, "fsq_layer.in_proj")
    _load_linear(network.fsq.out_proj, model, "fsq_layer.out_proj")
    for name in (
        "enc_to_lm_proj",
        "lm_to_dit_proj",
        "res_to_dit_proj",
        "fusion_concat_proj",
        "stop_proj",
        "stop_head",
    ):
        _load_linear(getattr(network, name), model, name)
    _load_vae(network.audio_vae, vae)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _load_linear(linear: Linear, source: Source, name: str) -> None:
    linear.weight = _parameter(source.take(f"{name}.weight", (linear.outputs, linear.inputs)))
    if linear.bias is not None:
        linear.bias = _parameter(source.take(f"{name}.bias", (linear.outputs,)))


def _load_norm(norm: RMSNorm, source: Source, name: str) -> None:
    norm.weight = _parameter(source.take(f"{name}.weight", tuple(norm.weight.shape)))


def _load_fused(linear: Linear, source: Source, names: dict[str, int]) -> None:
    """One linear layer from several that read the same input, given by name and number of outputs."""
    parts = [source.take(f"{name}.weight", (outputs, linear.inputs)) for name, outputs in names.items()]
    linear.weight = _parameter(joined(parts))


def _load_stack(stack: Stack, source: Source, prefix: str) -> None:
    config = stack.config
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    for index, layer in enumerate(stack.blocks()):
        at = f"{prefix}.layers.{index}"
        attention = f"{at}.self_attn"
        _load_fused(
            layer.qkv,
            source,
            {f"{attention}.q_proj": query, f"{attention}.k_proj": key, f"{attention}.v_proj": key},
        )
        _load_linear(layer.o_proj, source, f"{attention}.o_proj")
        size = config.intermediate_size
        _load_fused(layer.gate_up, source, {f"{at}.mlp.gate_proj": size, f"{at}.mlp.up_proj": size})
        _load_linear(layer.down_proj, source, f"{at}.mlp.down_proj")
        _load_norm(layer.input_layernorm, source, f"{at}.input_layernorm")
        _load_norm(layer.post_attention_layernorm, source, f"{at}.post_attention_layernorm")
    _load_norm(stack.norm, source, f"{prefix}.norm")


def _load_encoder(encoder: LocEnc, source: Source) -> None:
    shape = (1, 1, 1, encoder.in_proj.outputs)
    encoder.special_token = _parameter(source.take("feat_encoder.special_token", shape))
    _load_linear(encoder.in_proj, source, "feat_encoder.in_proj")
    _load_stack(encoder.encoder, source, "feat_encoder.encoder")


def _load_dit(dit: LocDiT, source: Source) -> None:
    prefix = "feat_decoder.estimator"
    for name in ("in_proj", "cond_proj", "out_proj"):
        _load_linear(getattr(dit, name), source, f"{prefix}.{name}")
    for name in ("time_mlp", "delta_time_mlp"):
        mlp: TimeMLP = getattr(dit, name)
        _load_linear(mlp.linear_1, source, f"{prefix}.{name}.linear_1")
        _load_linear(mlp.linear_2, source, f"{prefix}.{name}.linear_2")
    _load_stack(dit.decoder, source, f"{prefix}.decoder")


# --- AudioVAE ---------------------------------------------------------------------------------------------------------


def _next(stages: Iterator[nn.Module], kind: type[T] | tuple[type[T], ...]) -> T:
    """The next stage, which the order of construction makes one of ``kind``."""
    stage = next(stages)
    if not isinstance(stage, kind):
        raise TypeError(f"the AudioVAE has {type(stage).__name__} where its checkpoint has {kind}")
    return stage


def _load_vae(vae: AudioVAE, source: Source) -> None:
    config = vae.config
    convs: tuple[type[Conv | DepthwiseConv], ...] = (Conv, DepthwiseConv)
    stages = iter(vae.encoder.stages)
    _load_conv(_next(stages, Conv), source, "encoder.block.0")
    for block in range(len(config.encoder_rates)):
        at = f"encoder.block.{block + 1}.block"
        for unit in range(3):
            _load_unit(_next(stages, ResidualUnit), source, f"{at}.{unit}")
        _load_resample(_next(stages, Downsample), source, f"{at}.3", f"{at}.4")
    mean = _next(stages, Conv)
    _load_conv(mean, source, "encoder.fc_mu")
    # The variance head of the training objective: part of every checkpoint, never computed.
    _take_conv(source, "encoder.fc_logvar", (config.latent_dim, mean.channels, 3))

    stages = iter(vae.decoder.stages)
    if config.sr_bin_boundaries is not None:
        source.take("decoder.sr_bin_boundaries", (len(config.sr_bin_boundaries),))
    first = 2 if config.depthwise else 1
    for index in range(first):
        _load_conv(_next(stages, convs), source, f"decoder.model.{index}")
    for index in range(first, first + len(config.decoder_rates)):
        if config.sr_bin_boundaries is not None:
            _load_condition(_next(stages, RateCondition), source, f"decoder.sr_cond_model.{index}", config)
        at = f"decoder.model.{index}.block"
        _load_resample(_next(stages, Upsample), source, f"{at}.0", f"{at}.1")
        for unit in range(3):
            _load_unit(_next(stages, ResidualUnit), source, f"{at}.{unit + 2}")
    last = first + len(config.decoder_rates)
    final = _next(stages, FinalConv)
    _load_snake(final.snake, source, f"decoder.model.{last}")
    _load_conv(final, source, f"decoder.model.{last + 1}")


def _take_conv(source: Source, name: str, shape: tuple[int, ...], outputs: int | None = None) -> tuple[Tensor, Tensor]:
    """Weight with its norm folded in, and bias. ``outputs`` differs from ``shape[0]`` for transposed convolutions."""
    bias = source.take(f"{name}.bias", (outputs or shape[0],))
    gain = source.take(f"{name}.weight_g", (shape[0], 1, 1))
    direction = source.take(f"{name}.weight_v", shape)
    # On the meta device the compiler would be loaded for it, and the shape is known.
    return direction if direction.is_meta else torch._weight_norm(direction, gain, 0), bias


def _load_conv(stage: Conv | DepthwiseConv, source: Source, name: str) -> None:
    if isinstance(stage, DepthwiseConv):
        stage.load(*_take_conv(source, name, (stage.channels, 1, stage.kernel)))
    else:
        stage.load(*_take_conv(source, name, (stage.linear.outputs, stage.channels, stage.kernel)))


def _load_snake(snake: Snake, source: Source, name: str) -> None:
    snake.alpha = _parameter(source.take(f"{name}.alpha", (1, snake.alpha.numel(), 1)).reshape(-1))


def _load_unit(unit: ResidualUnit, source: Source, name: str) -> None:
    _load_snake(unit.snake_in, source, f"{name}.block.0")
    _load_conv(unit.wide, source, f"{name}.block.1")
    _load_snake(unit.snake_out, source, f"{name}.block.2")
    _load_conv(unit.pointwise, source, f"{name}.block.3")


def _load_resample(stage: Downsample | Upsample, source: Source, snake: str, conv: str) -> None:
    _load_snake(stage.snake, source, snake)
    if isinstance(stage, Downsample):
        stage.load(*_take_conv(source, conv, (stage.linear.outputs, stage.channels, 2 * stage.stride)))
    else:
        stage.load(*_take_conv(source, conv, (stage.channels, stage.outputs, 2 * stage.stride), stage.outputs))


def _load_condition(stage: RateCondition, source: Source, name: str, config: VAEConfig) -> None:
    buckets = len(config.sr_bin_boundaries or []) + 1
    if stage.kind.startswith("scale_bias"):
        scale = source.take(f"{name}.scale_embed.weight", (buckets, stage.channels))
        stage.scale = _parameter(scale[config.sample_rate_bin].clone())
        offset = source.take(f"{name}.bias_embed.weight", (buckets, stage.channels))
    else:
        offset = source.take(f"{name}.cond_embed.weight", (buckets, stage.offset.numel()))
    stage.offset = _parameter(offset[config.sample_rate_bin].clone())
    if stage.snake is not None and stage.pointwise is not None:
        _load_snake(stage.snake, source, f"{name}.out_layer.0")
        _load_conv(stage.pointwise, source, f"{name}.out_layer.1")
