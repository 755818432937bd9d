"""From training checkpoints to a checkpoint folder in the official layout.

The inverse of :mod:`voxr_ray.voxcpm2.weights`: fused projections are cut apart, and folded convolution weights split
into a norm and a direction. Language model weights are stored in bfloat16, those of the AudioVAE in float16.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import soundfile
import torch
from torch import Tensor, nn

from scripts.random_checkpoint import write_side_files
from training import teacher
from training.corpus import SPEAKERS
from training.features import RATE_HZ
from training.files import read_state
from training.lexicon import build_tokenizer, load
from training.settings import CONFIG, DEFAULTS, MAX_PART_CHARS, NAME, NOTICE
from training.student import new_network
from training.vae import new_vae
from voxr_ray.voxcpm2.check import check_checkpoint
from voxr_ray.voxcpm2.hub import VOICES_FOLDER
from voxr_ray.voxcpm2.local import LocDiT
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.ops import Linear
from voxr_ray.voxcpm2.stack import Stack
from voxr_ray.voxcpm2.vae import AudioVAE, Conv, DepthwiseConv, Downsample, FinalConv, ResidualUnit, Upsample

LIMIT_BYTES = 20_000_000

REFERENCE_TEXT = "the old teacher came home in the evening with the children"
"""What the recordings that make the voices say: about three seconds."""

Named = dict[str, Tensor]


def _linear(linear: Linear, name: str) -> Named:
    tensors: Named = {f"{name}.weight": linear.weight}
    if linear.bias is not None:
        tensors[f"{name}.bias"] = linear.bias
    return tensors


def _stack(stack: Stack, prefix: str) -> Named:
    tensors: Named = {f"{prefix}.norm.weight": stack.norm.weight}
    for index, layer in enumerate(stack.blocks()):
        at = f"{prefix}.layers.{index}"
        query, key = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        for name, part in zip("qkv", torch.split(layer.qkv.weight, [query, key, key]), strict=True):
            tensors[f"{at}.self_attn.{name}_proj.weight"] = part
        for name, part in zip(("gate", "up"), layer.gate_up.weight.chunk(2), strict=True):
            tensors[f"{at}.mlp.{name}_proj.weight"] = part
        tensors |= _linear(layer.o_proj, f"{at}.self_attn.o_proj") | _linear(layer.down_proj, f"{at}.mlp.down_proj")
        tensors[f"{at}.input_layernorm.weight"] = layer.input_layernorm.weight
        tensors[f"{at}.post_attention_layernorm.weight"] = layer.post_attention_layernorm.weight
    return tensors


def _dit(dit: LocDiT) -> Named:
    prefix = "feat_decoder.estimator"
    tensors = _stack(dit.decoder, f"{prefix}.decoder")
    for name in ("in_proj", "cond_proj", "out_proj"):
        tensors |= _linear(getattr(dit, name), f"{prefix}.{name}")
    for name in ("time_mlp", "delta_time_mlp"):
        for layer in ("linear_1", "linear_2"):
            tensors |= _linear(getattr(getattr(dit, name), layer), f"{prefix}.{name}.{layer}")
    return tensors


def model_tensors(network: VoxCPM2) -> Named:
    """Everything but the AudioVAE, under the official names."""
    if network.base_lm.embed_tokens is None:
        raise ValueError("the base LM has no token embeddings")
    tensors: Named = {"base_lm.embed_tokens.weight": network.base_lm.embed_tokens.weight}
    tensors |= _stack(network.base_lm, "base_lm") | _stack(network.residual_lm, "residual_lm")
    tensors["feat_encoder.special_token"] = network.feat_encoder.special_token
    tensors |= _linear(network.feat_encoder.in_proj, "feat_encoder.in_proj")
    tensors |= _stack(network.feat_encoder.encoder, "feat_encoder.encoder") | _dit(network.feat_decoder.estimator)
    tensors |= _linear(network.fsq.in_proj, "fsq_layer.in_proj") | _linear(network.fsq.out_proj, "fsq_layer.out_proj")
    for name in ("enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj", "fusion_concat_proj", "stop_proj", "stop_head"):
        tensors |= _linear(getattr(network, name), name)
    return tensors


# --- AudioVAE ---------------------------------------------------------------------------------------------------------


def _normed(name: str, weight: Tensor, bias: Tensor) -> Named:
    gain = weight.flatten(1).norm(dim=1).view(-1, 1, 1)
    return {f"{name}.weight_v": weight, f"{name}.weight_g": gain, f"{name}.bias": bias}


def _conv(stage: nn.Module, name: str) -> Named:
    if isinstance(stage, DepthwiseConv):
        return _normed(name, stage.weight.t().unsqueeze(1), stage.bias)
    if not isinstance(stage, Conv) or stage.linear.bias is None:
        raise TypeError(f"{name}: {type(stage).__name__} is no convolution")
    linear, bias = stage.linear, stage.linear.bias
    weight = linear.weight.view(linear.outputs, stage.kernel, stage.channels).permute(0, 2, 1)
    return _normed(name, weight, bias)


def _snake(alpha: Tensor, name: str) -> Named:
    return {f"{name}.alpha": alpha.view(1, -1, 1)}


def _unit(unit: nn.Module, name: str) -> Named:
    if not isinstance(unit, ResidualUnit):
        raise TypeError(f"{name}: {type(unit).__name__} is no residual unit")
    snakes = _snake(unit.snake_in.alpha, f"{name}.block.0") | _snake(unit.snake_out.alpha, f"{name}.block.2")
    return snakes | _conv(unit.wide, f"{name}.block.1") | _conv(unit.pointwise, f"{name}.block.3")


def _resample(stage: nn.Module, snake: str, conv: str) -> Named:
    if not isinstance(stage, Downsample | Upsample) or stage.linear.bias is None:
        raise TypeError(f"{conv}: {type(stage).__name__} does not resample")
    linear = stage.linear
    bias: Tensor = stage.linear.bias
    if isinstance(stage, Downsample):
        weight = linear.weight.view(linear.outputs, 2 * stage.stride, stage.channels).permute(0, 2, 1)
    else:
        taps = linear.weight.view(stage.stride, stage.outputs, 2 * stage.channels).permute(2, 1, 0)
        before, now = taps.chunk(2)
        weight = torch.cat((now, before), dim=-1)
        # The same for all frames made of one: training keeps them tied.
        bias = bias.view(stage.stride, stage.outputs)[0]
    return _snake(stage.snake.alpha, snake) | _normed(conv, weight, bias)


def _stages(stages: nn.ModuleList) -> Iterator[nn.Module]:
    return iter(stages)


def vae_tensors(vae: AudioVAE) -> Named:
    """The AudioVAE under the official names."""
    config = vae.config
    if config.sr_bin_boundaries is not None or not config.depthwise:
        raise ValueError("only depthwise networks without rate conditions are trained here")
    stages = _stages(vae.encoder.stages)
    tensors = _conv(next(stages), "encoder.block.0")
    for block in range(1, len(config.encoder_rates) + 1):
        for unit in range(3):
            tensors |= _unit(next(stages), f"encoder.block.{block}.block.{unit}")
        tensors |= _resample(next(stages), f"encoder.block.{block}.block.3", f"encoder.block.{block}.block.4")
    mean = _conv(next(stages), "encoder.fc_mu")
    # The variance head is part of every checkpoint and never computed.
    spare = {name.replace("fc_mu", "fc_logvar"): torch.full_like(tensor, 0.01) for name, tensor in mean.items()}
    tensors |= mean | spare
    stages = _stages(vae.decoder.stages)
    tensors |= _conv(next(stages), "decoder.model.0") | _conv(next(stages), "decoder.model.1")
    for index in range(2, 2 + len(config.decoder_rates)):
        at = f"decoder.model.{index}.block"
        tensors |= _resample(next(stages), f"{at}.0", f"{at}.1")
        for unit in range(3):
            tensors |= _unit(next(stages), f"{at}.{unit + 2}")
    last = next(stages)
    if not isinstance(last, FinalConv):
        raise TypeError(f"the decoder ends with {type(last).__name__}")
    end = 2 + len(config.decoder_rates)
    return tensors | _snake(last.snake.alpha, f"decoder.model.{end}") | _conv(last, f"decoder.model.{end + 1}")


def _save(tensors: Named, path: Path, dtype: torch.dtype) -> None:
    stored = {name: tensor.detach().to(dtype).contiguous().clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(stored, path)


def write_voices(folder: Path) -> None:
    """Write one recording of each teacher speaker: references that are ready to be named."""
    folder.mkdir(parents=True, exist_ok=True)
    for speaker in SPEAKERS:
        soundfile.write(folder / f"{speaker}.flac", teacher.say(REFERENCE_TEXT, speaker)[0], RATE_HZ)


def export(work: Path, folder: Path) -> None:
    """Write a checkpoint folder from what training has so far, and check it.

    Raises:
        ValueError: Something is not trained yet, or the folder has grown too large for the package.
    """
    states = {name: read_state(work / f"{name}.pt") for name in ("lm", "decoder", "encoder")}
    for name in ("lm", "decoder"):
        if states[name] is None:
            raise ValueError(f"{work / name}.pt is not there: train it first")
    network, vae = new_network(0), new_vae(0)
    network.load_state_dict((states["lm"] or {})["average"])
    for half in ("decoder", "encoder"):
        if (state := states[half]) is not None:
            getattr(vae, half).load_state_dict(state["average"])
    folder.mkdir(parents=True, exist_ok=True)
    _save(model_tensors(network), folder / "model.safetensors", torch.bfloat16)
    _save(vae_tensors(vae), folder / "audiovae.safetensors", torch.float16)
    build_tokenizer(load(work)).save(str(folder / "tokenizer.json"), pretty=False)
    own = {"name": NAME, "notice": NOTICE, "defaults": DEFAULTS, "max_part_chars": MAX_PART_CHARS}
    write_side_files(folder, CONFIG, own)
    write_voices(folder / VOICES_FOLDER)
    check_checkpoint(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if size > LIMIT_BYTES:
        raise ValueError(f"{folder} has {size:,} bytes, the package has room for {LIMIT_BYTES:,}")
    print(f"{folder}: {size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--folder", type=Path, help="where to write the checkpoint; WORK/checkpoint if not given")
    given = parser.parse_args()
    export(given.work, given.folder or given.work / "checkpoint")
