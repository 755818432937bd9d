"""Differentiable passes through the served network, and the losses on them.

The served stacks write into caches, which gradients cannot follow, and sum attention in blocks; here the same layers
run over whole sequences. Matrix products may run in bfloat16 (autocast); attention stays float32, because its backward
pass in bfloat16 is several times slower on a CPU.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.phones import PHONES
from training.sequences import Batch
from training.settings import CONFIG
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.local import LocDiT, LocEnc
from voxr_ray.voxcpm2.network import FSQ, VoxCPM2
from voxr_ray.voxcpm2.ops import Linear, silu
from voxr_ray.voxcpm2.stack import Layer, Stack

FEEDBACK_NOISE = 0.35
"""Largest deviation of the noise on patches fed back: when served they are the model's own, with its errors."""

OWN_PATCHES, OWN_NOISE = 0.7, 0.1
"""Share of the patches fed back that are the network's own, in the batches that have such, and noise on them."""

GUIDANCE_DROPOUT = 0.1


def new_network(seed: int) -> VoxCPM2:
    """A network with fan-in initialisation, its AudioVAE left out (it is trained by itself)."""
    torch.manual_seed(seed)
    network = VoxCPM2(ModelConfig.model_validate(CONFIG))
    del network.audio_vae
    for module in network.modules():
        if isinstance(module, Linear):
            nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.inputs))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1.0)
        elif isinstance(module, LocEnc):
            nn.init.normal_(module.special_token, std=1.0)
    for module in network.modules():
        if isinstance(module, Stack):
            for layer in module.blocks():
                for branch in (layer.o_proj, layer.down_proj):
                    nn.init.normal_(branch.weight, std=1.0 / math.sqrt(2 * len(module.layers) * branch.inputs))
    nn.init.zeros_(network.feat_decoder.estimator.out_proj.weight)
    return network


def _attend(layer: Layer, query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> Tensor:
    if layer.kv_heads != layer.heads:
        key, value = (part.repeat_interleave(layer.heads // layer.kv_heads, dim=2) for part in (key, value))
    with torch.autocast("cpu", enabled=False):
        query, key, value = (part.float().transpose(1, 2) for part in (query, key, value))
        if causal:
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(layer.head_dim)
            out = scores.softmax(dim=-1) @ value
    return out.transpose(1, 2).flatten(2)


class Watch:
    """Takes down where one layer's first heads look from the conditioning positions."""

    LAYER, HEADS = 2, 2

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.loss = torch.zeros(())

    def look(self, index: int, query: Tensor, key: Tensor) -> None:
        """Queries and keys ``(rows, length, heads, head_dim)`` of layer ``index``."""
        if index != self.LAYER:
            return
        batch, length = self.batch, query.shape[1]
        query, key = (part[:, :, : self.HEADS].float().transpose(1, 2) for part in (query, key))
        rows, positions = batch.conditions // length, batch.conditions % length
        scores = torch.einsum("thd,thpd->thp", query[rows, :, positions], key[rows]) / math.sqrt(query.shape[-1])
        future = torch.arange(length) > positions[:, None]
        logits = scores.masked_fill(future[:, None], -torch.inf).log_softmax(dim=-1)
        each = batch.spoken[:, None].expand(-1, self.HEADS, -1)
        # Log of the mean weight on the tokens spoken: any of them may have all the attention.
        self.loss = -logits.gather(2, each).logsumexp(dim=-1).mean() + math.log(each.shape[-1])


def run_stack(
    stack: Stack, x: Tensor, *, causal: bool, keep: slice = slice(None), watch: Watch | None = None
) -> Tensor:
    """A pass over ``(rows, length, hidden)``, each position seeing those before it, or all.

    ``keep`` names the positions whose output is wanted. Equal to :meth:`Stack.prefill` and :meth:`Stack.local` but for
    the order of summation. ``watch`` is told the queries and keys of every layer.
    """
    angles = None
    if stack.rope is not None:
        cos, sin = stack.rope.at(slice(0, x.shape[1]))
        angles = cos.unsqueeze(-2), sin.unsqueeze(-2)
    last = len(stack.layers) - 1
    for index, layer in enumerate(stack.blocks()):
        query, key, value = layer.rotated(layer.project(x), angles)
        if watch is not None:
            watch.look(index, query, key)
        if index == last and keep != slice(None):
            query, x = query[:, keep], x[:, keep]
        x = layer.finish(x, _attend(layer, query, key, value, causal=causal))
    normed: Tensor = stack.norm(x)
    return normed


def embed_patches(network: VoxCPM2, patches: Tensor) -> Tensor:
    """``(patches, PATCH_SIZE, LATENT_DIM)`` to ``(patches, hidden)``. See :meth:`VoxCPM2.embed_patches`."""
    encoder = network.feat_encoder
    frames = encoder.in_proj(patches)
    token = encoder.special_token.view(1, 1, -1).expand(len(frames), 1, -1)
    hidden = run_stack(
        encoder.encoder, torch.cat((token.to(frames.dtype), frames), dim=1), causal=False, keep=slice(0, 1)
    )
    out: Tensor = network.enc_to_lm_proj(hidden[:, 0])
    return out


def quantize(fsq: FSQ, hidden: Tensor) -> Tensor:
    """See :meth:`FSQ.forward`; the gradient passes the rounding as if it were not there."""
    bounded = fsq.in_proj(hidden).float().tanh()
    rounded = torch.round(bounded * fsq.scale) / fsq.scale
    out: Tensor = fsq.out_proj(bounded + (rounded - bounded).detach())
    return out


def velocity(dit: LocDiT, noisy: Tensor, mu: Tensor, times: Tensor, previous: Tensor) -> Tensor:
    """See :meth:`LocDiT.forward`; each row has a time of its own, and the previous patch comes as it is."""
    token = dit.time_tokens(times, torch.zeros_like(times)).unsqueeze(1)
    parts = (mu, token, dit.cond_proj(previous), dit.in_proj(noisy))
    sequence = torch.cat([part.float() for part in parts], dim=1)
    size = dit.patch_size
    hidden = run_stack(dit.decoder, sequence, causal=False, keep=slice(sequence.shape[1] - size, None))
    out: Tensor = dit.out_proj(hidden)
    return out


class Helpers(nn.Module):
    """What only training needs: the hidden states must know the phones and, roughly, the sound of the next patch."""

    def __init__(self, hidden: int, patch_size: int, latent_dim: int) -> None:
        super().__init__()
        self.shape = patch_size, latent_dim
        self.phones = nn.Linear(2 * hidden, patch_size * len(PHONES))
        self.sound = nn.Linear(2 * hidden, patch_size * latent_dim)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """``(targets, 2 * hidden)`` to phone logits ``(targets, PATCH_SIZE, PHONES)`` and sound, shaped as patches."""
        patch_size, latent_dim = self.shape
        return self.phones(hidden).view(-1, patch_size, len(PHONES)), self.sound(hidden).view(
            -1, patch_size, latent_dim
        )


def hidden_states(network: VoxCPM2, batch: Batch, heard: Tensor, watch: Watch) -> tuple[Tensor, Tensor]:
    """Hidden states ``(targets, hidden)`` that condition the targets: base LM, residual LM.

    ``heard`` is the batch's patches as they are fed back.
    """
    rows, length = batch.token_ids.shape
    flat = network.embed_text(batch.token_ids).flatten(0, 1)
    embedded = embed_patches(network, heard).float()
    inputs = flat.index_copy(0, batch.audio_at, embedded).view(rows, length, -1)
    hidden = run_stack(network.base_lm, inputs, causal=True, watch=watch).flatten(0, 1).float()
    hidden = hidden.index_copy(0, batch.audio_at, quantize(network.fsq, hidden[batch.audio_at]).float())
    patch_part = torch.zeros_like(hidden).index_copy(0, batch.audio_at, embedded)
    fused = network.fusion_concat_proj(torch.cat((hidden, patch_part), dim=-1))
    residual = run_stack(network.residual_lm, fused.float().view(rows, length, -1), causal=True).flatten(0, 1)
    return hidden[batch.conditions], residual[batch.conditions].float()


@torch.no_grad()
def with_own_patches(
    network: VoxCPM2, helpers: Helpers, batch: Batch, heard: Tensor, generator: torch.Generator
) -> Tensor:
    """Replace a share of the patches fed back by what the network makes of them: it must live with its own mistakes."""
    _, sound = helpers(torch.cat(hidden_states(network, batch, heard, Watch(batch)), dim=-1))
    chosen = torch.rand(len(sound), generator=generator) < OWN_PATCHES
    own = sound.float()[chosen]
    own = own + OWN_NOISE * torch.randn(own.shape, generator=generator)
    return heard.index_copy(0, batch.targets[chosen], own)


def losses(
    network: VoxCPM2, helpers: Helpers, batch: Batch, generator: torch.Generator, *, drawn: int, own: float = 0.0
) -> dict[str, Tensor]:
    """The parts of the loss.

    Args:
        network: Trained.
        helpers: Trained beside it.
        batch: Sequences.
        generator: Of all that is random here.
        drawn: The flow matching part is taken on at most so many targets, chosen at random.
        own: Chance that patches fed back are the network's own.
    """
    strength = FEEDBACK_NOISE * torch.rand(len(batch.patches), 1, 1, generator=generator)
    heard = batch.patches + strength * torch.randn(batch.patches.shape, generator=generator)
    if torch.rand((), generator=generator) < own:
        heard = with_own_patches(network, helpers, batch, heard, generator)
    watch = Watch(batch)
    base, residual = hidden_states(network, batch, heard, watch)
    truth = batch.patches[batch.targets]
    phone_logits, sound = helpers(torch.cat((base, residual), dim=-1))
    stop_logits = network.stop_head(silu(network.stop_proj(base))).float()

    chosen = torch.randperm(len(truth), generator=generator)[:drawn]
    mu = torch.stack((network.lm_to_dit_proj(base[chosen]), network.res_to_dit_proj(residual[chosen])), dim=1)
    dropped = torch.rand(len(chosen), 1, 1, generator=generator) < GUIDANCE_DROPOUT
    mu = mu.float().masked_fill(dropped, 0.0)
    behind = batch.previous[chosen]
    previous = heard[behind.clamp_min(0)].masked_fill((behind < 0)[:, None, None], 0.0)
    times = torch.randn(len(chosen), generator=generator).sigmoid()
    noise = torch.randn(len(chosen), *truth.shape[1:], generator=generator)
    # The path leads to what the hidden state already says of the patch, not to the patch: so the velocity learned is
    # towards the mean, whatever the time, and a draw is the mean instead of a sample that a network of this size would
    # get wrong. The teacher, a program, says a sentence in one way only.
    noisy = torch.lerp(sound.detach().float()[chosen], noise, times[:, None, None])
    flow = velocity(network.feat_decoder.estimator, noisy, mu, times, previous).float()
    return {
        "flow": F.mse_loss(flow, noise - truth[chosen]),
        "stop": F.cross_entropy(stop_logits, batch.stops),
        "phone": F.cross_entropy(phone_logits.float().flatten(0, 1), batch.labels.flatten()),
        "sound": F.mse_loss(sound.float(), truth),
        "place": watch.loss,
    }
