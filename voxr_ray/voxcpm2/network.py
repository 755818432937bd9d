"""The whole VoxCPM2 network: two language models, the local networks, the stop head and the AudioVAE.

The network is stateless: caches, positions and noise belong to the lanes (:mod:`voxr_ray.voxcpm2.lanes`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.local import LocDiT, LocEnc
from voxr_ray.voxcpm2.ops import Linear, RMSNorm, silu
from voxr_ray.voxcpm2.solver import Solver
from voxr_ray.voxcpm2.stack import LayerCache, Stack, cache_tensors
from voxr_ray.voxcpm2.tape import Function, Recorded
from voxr_ray.voxcpm2.vae import AudioVAE, Snake

EAGER_STEPS = 4
"""Steps of the language models at some length of lanes before they are recorded. The first of them waits for the pieces
of whoever made the lanes that long; recording, which takes as long as a step or two, comes when those are done."""


class FSQ(nn.Module):
    """Finite scalar quantization between two projections.

    Source: OpenBMB/VoxCPM, ``ScalarQuantizationLayer``.
    """

    def __init__(self, size: int, latent_dim: int, scale: float) -> None:
        super().__init__()
        self.in_proj = Linear(size, latent_dim)
        self.out_proj = Linear(latent_dim, size)
        self.scale = scale

    def forward(self, hidden: Tensor) -> Tensor:
        """``(..., size)`` to ``(..., size)``."""
        bounded = self.in_proj(hidden).float().tanh()
        quantized = torch.round(bounded * self.scale) / self.scale
        out: Tensor = self.out_proj(quantized.to(hidden.dtype))
        return out


class VoxCPM2(nn.Module):
    """Text tokens and latent patches in, latent patches and stop decisions out.

    Source: OpenBMB/VoxCPM, ``VoxCPM2Model``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.lm_config.hidden_size
        shape = {"feat_dim": config.feat_dim, "patch_size": config.patch_size}
        self.base_lm = Stack(config.lm_config)
        self.residual_lm = Stack(config.residual_lm)
        self.feat_encoder = LocEnc(config.encoder_lm, **shape)
        self.feat_decoder = Solver(LocDiT(config.dit_lm, **shape), mean_mode=config.dit_config.dit_mean_mode)
        self.fsq = FSQ(hidden, config.scalar_quantization_latent_dim, config.scalar_quantization_scale)
        self.enc_to_lm_proj = Linear(config.encoder_config.hidden_dim, hidden)
        self.lm_to_dit_proj = Linear(hidden, config.dit_config.hidden_dim)
        self.res_to_dit_proj = Linear(hidden, config.dit_config.hidden_dim)
        self.fusion_concat_proj = Linear(2 * hidden, hidden)
        self.stop_proj = Linear(hidden, hidden)
        self.stop_head = Linear(hidden, 2, bias=False)
        self.audio_vae = AudioVAE(config.audio_vae_config)
        self._take: Function = self._take_patches

    @property
    def dtype(self) -> torch.dtype:
        """What everything but the AudioVAE computes in."""
        return self.base_lm.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.base_lm.norm.weight.device

    def embed_text(self, token_ids: Tensor) -> Tensor:
        """int64 ``(tokens,)`` to ``(tokens, hidden)``."""
        if self.base_lm.embed_tokens is None:
            raise ValueError("the base LM has no token embeddings")
        embedded: Tensor = self.base_lm.embed_tokens(token_ids)
        scale = self.config.lm_config.embedding_scale
        return embedded if scale == 1.0 else embedded * scale

    def embed_patches(self, patches: Tensor) -> Tensor:
        """float32 ``(patches, patch_size, feat_dim)`` to ``(patches, hidden)``."""
        out: Tensor = self.enc_to_lm_proj(self.feat_encoder(patches.to(self.dtype)))
        return out

    def prefill(
        self,
        embedded: Tensor,
        is_audio: Tensor,
        base_cache: list[LayerCache],
        residual_cache: list[LayerCache],
        start: int,
    ) -> tuple[Tensor, Tensor]:
        """Run one piece of a prefix through both language models.

        Args:
            embedded: ``(piece, hidden)``: text embeddings and patch embeddings in the order of the sequence.
            is_audio: bool ``(piece,)``: which positions are patches.
            base_cache: Handoff cache of the base LM, filled below ``start``.
            residual_cache: Handoff cache of the residual LM, likewise.
            start: First position of the piece.

        Returns:
            Hidden states ``(1, hidden)`` of the piece's last position: base LM, residual LM.
        """
        audio = is_audio[:, None]
        hidden = self.base_lm.prefill(embedded[None], base_cache, start)[0]
        # FSQ quantizes what is said at audio positions; text positions bypass it, and have no patch embedding.
        hidden = torch.where(audio, self.fsq(hidden), hidden)
        patch_part = torch.where(audio, embedded, torch.zeros_like(embedded))
        fused = self.fusion_concat_proj(torch.cat((hidden, patch_part), dim=-1))
        residual = self.residual_lm.prefill(fused[None], residual_cache, start)[0]
        return hidden[-1:], residual[-1:]

    def stop_wins(self, base_hidden: Tensor) -> Tensor:
        """Whether the stop head wins for hidden states ``(rows, hidden)``: bool ``(rows,)``."""
        logits: Tensor = self.stop_head(silu(self.stop_proj(base_hidden)))
        return logits[:, 1] > logits[:, 0]

    def draw(
        self,
        noise: Tensor,
        base_hidden: Tensor,
        residual_hidden: Tensor,
        previous: Tensor,
        inference_timesteps: int,
        guidance: float | Tensor,
    ) -> Tensor:
        """Draw the next patch of each row.

        Args:
            noise: float32 ``(rows, patch_size, feat_dim)``.
            base_hidden: ``(rows, hidden)``.
            residual_hidden: ``(rows, hidden)``.
            previous: float32 ``(rows, patch_size, feat_dim)``.
            inference_timesteps: Euler steps.
            guidance: See :meth:`Solver.forward`.

        Returns:
            float32 ``(rows, patch_size, feat_dim)``.
        """
        mu = torch.stack((self.lm_to_dit_proj(base_hidden), self.res_to_dit_proj(residual_hidden)), dim=1)
        patch: Tensor = self.feat_decoder(noise, mu, previous, inference_timesteps, guidance)
        return patch

    def step(
        self,
        patches: Tensor,
        base_cache: list[LayerCache],
        residual_cache: list[LayerCache],
        positions: Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Take the patch just drawn into both language models, one position for each row.

        Args:
            patches: float32 ``(rows, patch_size, feat_dim)``.
            base_cache: Lanes of the base LM.
            residual_cache: Lanes of the residual LM.
            positions: int64 ``(rows,)``.
            mask: See :meth:`Stack.step`.

        Returns:
            Hidden states ``(rows, hidden)``: base LM, residual LM.
        """
        hidden, residual = self._take(patches, positions, mask, *cache_tensors(base_cache + residual_cache))
        return hidden, residual

    def _take_patches(self, patches: Tensor, positions: Tensor, mask: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        layers = [LayerCache(key, value) for key, value in zip(caches[::2], caches[1::2], strict=True)]
        count = len(self.base_lm.layers)
        embedded = self.embed_patches(patches)
        hidden = self.fsq(self.base_lm.step(embedded, layers[:count], positions, mask))
        fused = self.fusion_concat_proj(torch.cat((hidden, embedded), dim=-1))
        return hidden, self.residual_lm.step(fused, layers[count:], positions, mask)

    def pack(self) -> None:
        """Prepare every layer that gains from it for inference on this CPU; a stack before its layers."""
        for module in self.modules():
            if isinstance(module, Stack | Linear | RMSNorm | Snake):
                module.pack()

    def record(self) -> None:
        """Record from here on, once for each shape, what runs at every step on this CPU (:mod:`.tape`).

        After :meth:`pack`: weights are constants of what is recorded.
        """
        self._take = Recorded(self._take_patches, after=EAGER_STEPS)
        self.feat_decoder.record()
        self.audio_vae.record()
