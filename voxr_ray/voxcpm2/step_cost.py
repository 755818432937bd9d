"""What one step of a checkpoint must move and compute, from its configuration. Pure; needs no torch.

Bytes and operations are those that cannot be avoided: every weight that a step multiplies by is read once for each
time the step runs it, every cached position is read once, and a multiply-add counts as two operations. Weights of the
embedding are not read whole by a step. LocDiT is counted as if its first block projected every position at each Euler
step, which is up to a tenth of its operations too many.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxr_ray.voxcpm2.config import LMConfig, ModelConfig, VAEConfig

FLOAT32 = 4

KERNELS_PER_LAYER = 45
"""Kernels that a layer launches in a step. An estimate, from the operators that are no views."""

KERNELS_PER_RATE = 60
"""Kernels that the decoder launches for each of its rates. An estimate likewise."""


def stack_weights(config: LMConfig) -> int:
    """Weights of a stack of blocks that a position is multiplied by, without embeddings."""
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    attention = config.hidden_size * (heads + 2 * kv_heads) * size + heads * size * config.hidden_size
    norms = 2 * config.hidden_size
    return config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size + norms)


def lane_bytes_per_position(config: ModelConfig, cache_bytes: int) -> int:
    """Bytes of keys and values of one position of one lane.

    Args:
        config: The checkpoint's.
        cache_bytes: Bytes of a number in the cache: 4 on a CPU, the dtype's on a GPU.
    """
    stacks = (config.lm_config, config.residual_lm)
    numbers = sum(2 * each.num_hidden_layers * each.num_key_value_heads * each.head_dim for each in stacks)
    return numbers * cache_bytes


def attention_copies(config: LMConfig, cache_bytes: int) -> int:
    """Bytes that attention over lanes writes beside them for each position of a row, in one layer.

    The layer's keys and values in float32, one in order for the product that comes next, and scores.

    Args:
        config: Of the stack.
        cache_bytes: Bytes of a number in the cache where it is not float32, which takes one copy more; else 0.
    """
    each = config.num_key_value_heads * config.head_dim
    return 2 * each * FLOAT32 + each * cache_bytes + 3 * config.num_attention_heads * FLOAT32


def local_values(config: ModelConfig) -> int:
    """Numbers a row holds in one layer of the DiT, guided and unguided: projections, attention and feed-forward."""
    dit = config.dit_lm
    heads = (2 * dit.num_attention_heads + 2 * dit.num_key_value_heads) * dit.head_dim
    return 2 * (3 + 2 * config.patch_size) * (4 * dit.hidden_size + heads + 3 * dit.intermediate_size)


def graph_nodes(config: ModelConfig, *, widths: int, lengths: int, solver_calls: int = 9) -> int:
    """About how many kernels the graphs of so many widths have.

    For each width one graph draws, one decodes, and ``lengths`` take what is drawn.
    """
    draw = solver_calls * config.dit_lm.num_hidden_layers
    stacks = (config.lm_config, config.residual_lm, config.encoder_lm)
    take = sum(stack.num_hidden_layers for stack in stacks)
    decode = KERNELS_PER_RATE * len(config.audio_vae_config.decoder_rates)
    return widths * (KERNELS_PER_LAYER * (draw + lengths * take) + decode)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step.

    Attributes:
        name: What it is.
        weights: Weights it multiplies by.
        runs: How often the step runs it.
        positions: Positions it computes in each run, for one row.
        weight_bytes: Bytes of a weight.
    """

    name: str
    weights: int
    runs: int
    positions: int
    weight_bytes: int

    @property
    def bytes_read(self) -> int:
        """Bytes of weights a step reads, whatever its width."""
        return self.weights * self.runs * self.weight_bytes

    def operations(self, rows: int) -> int:
        """Multiplications and additions of a step."""
        return 2 * self.weights * self.runs * self.positions * rows


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step, decode included, must move and compute.

    Attributes:
        parts: Everything that multiplies by weights.
        bytes_per_row: Bytes of keys and values read for each row.
        attention_per_row: Operations of attention over lanes for each row.
    """

    parts: tuple[Part, ...]
    bytes_per_row: int
    attention_per_row: int

    def bytes_moved(self, rows: int) -> int:
        """Bytes read by a step of so many rows."""
        return sum(part.bytes_read for part in self.parts) + rows * self.bytes_per_row

    def operations(self, rows: int) -> int:
        """Operations of a step of so many rows."""
        return sum(part.operations(rows) for part in self.parts) + rows * self.attention_per_row

    def floor_s(self, rows: int, *, bytes_per_s: float, operations_per_s: float) -> float:
        """Seconds below which no step can be: each part is bound by its bytes or by its operations.

        Args:
            rows: Rows of the step.
            bytes_per_s: What the memory gives.
            operations_per_s: What the arithmetic gives.
        """
        parts = sum(max(part.bytes_read / bytes_per_s, part.operations(rows) / operations_per_s) for part in self.parts)
        attention = max(rows * self.bytes_per_row / bytes_per_s, rows * self.attention_per_row / operations_per_s)
        return parts + attention


def step_cost(config: ModelConfig, *, solver_calls: int, length: int, weight_bytes: int, cache_bytes: int) -> StepCost:
    """The cost of a step.

    Args:
        config: The checkpoint's.
        solver_calls: Evaluations of the DiT, each for a guided and an unguided row.
        length: Positions that every row's lane is read to.
        weight_bytes: Bytes of a weight outside the AudioVAE, which is float32.
        cache_bytes: Bytes of a number in the cache.
    """
    lm, hidden = config.lm_config, config.lm_config.hidden_size
    dit, encoder = config.dit_lm, config.encoder_lm
    sequence = 3 + 2 * config.patch_size
    heads = (
        2 * hidden * hidden  # fusion
        + 2 * hidden * config.scalar_quantization_latent_dim
        + hidden * hidden  # stop
        + 2 * hidden * dit.hidden_size
        + encoder.hidden_size * hidden
    )
    parts = (
        Part("base LM", stack_weights(lm), 1, 1, weight_bytes),
        Part("residual LM", stack_weights(config.residual_lm), 1, 1, weight_bytes),
        Part("LocEnc", stack_weights(encoder), 1, 1 + config.patch_size, weight_bytes),
        Part("LocDiT", stack_weights(dit), solver_calls, 2 * sequence, weight_bytes),
        Part("projections", heads, 1, 1, weight_bytes),
        *_decoder_parts(config.audio_vae_config, config.patch_size),
    )
    stacks = (lm, config.residual_lm)
    attention = sum(4 * each.num_hidden_layers * each.num_attention_heads * each.head_dim * length for each in stacks)
    return StepCost(parts, length * lane_bytes_per_position(config, cache_bytes), attention)


def _decoder_parts(config: VAEConfig, frames: int) -> list[Part]:
    """The decoder, stage by stage: each runs at a higher rate than the one before."""
    width = config.decoder_dim
    parts = [Part("AudioVAE in", config.latent_dim * width, 1, frames, FLOAT32)]
    for index, rate in enumerate(config.decoder_rates):
        parts.append(Part(f"AudioVAE up {index}", 2 * width * rate * (width // 2), 1, frames, FLOAT32))
        width, frames = width // 2, frames * rate
        wide = 7 * width if config.depthwise else 7 * width * width
        parts.append(Part(f"AudioVAE units {index}", 3 * (width * width + wide), 1, frames, FLOAT32))
    parts.append(Part("AudioVAE out", 7 * width, 1, frames, FLOAT32))
    return parts
