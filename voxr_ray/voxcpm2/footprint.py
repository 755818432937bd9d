"""What a replica needs of memory, worked out from the configuration before anything is loaded.

Weights, lanes and decoder states are counted exactly; work space, the process and captured graphs are estimates, which
``python -m benchmarks.memory`` compares with what is measured. Lanes on a CPU, and lanes that widen, take memory as
they are used: a slot that nobody ever sat in costs nothing, a full one everything. Importing this loads torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from voxr_ray.engine.widths import stepped_widths
from voxr_ray.errors import CheckpointError, ConfigurationError
from voxr_ray.voxcpm2.checkpoint import DTYPES, CheckpointFiles
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.graphs import MOST_GRAPHS, read_lengths
from voxr_ray.voxcpm2.lanes import LENGTH_STEP, round_up
from voxr_ray.voxcpm2.noise import DRAWN_AHEAD
from voxr_ray.voxcpm2.step_cost import FLOAT32, attention_copies, graph_nodes, lane_bytes_per_position, local_values
from voxr_ray.voxcpm2.tape import MOST_TAPES
from voxr_ray.voxcpm2.vae import AudioVAE
from voxr_ray.voxcpm2.weights import tensor_table

CPU_PROCESS_BYTES = 450 * 2**20
"""A replica's process without a model: Python, torch, Ray and their libraries."""

CUDA_PROCESS_BYTES = 768 * 2**20
"""What a process takes of a GPU before its first tensor, with the work space of its libraries. An estimate."""

GRAPH_NODE_BYTES = 4096
"""Device memory of one kernel of a captured graph. An estimate."""

TAPE_LAYER_BYTES, DECODE_TAPES_BYTES = 352 * 2**10, 24 * 2**20
"""Memory of one layer in a recorded step, and of the recorded decodes, as they were measured."""

DECODED_PATCHES = 2
"""Patches of a row that a decode is counted for: the default chunk."""

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one replica.

    Attributes:
        weights: All weights, in the types they are kept in.
        lane: Keys and values of one slot that is full.
        row: What else the device holds of a slot: hidden states, patches, noise and the decoder's state.
        kept: What the process holds of a full slot until it is answered: features of recordings, or audio.
        work: Of a step and a decode, for each slot.
        process: Of the process, before it loads anything.
        graphs: Captured graphs, or recorded steps on a CPU.
        lanes: Slots.
        most_lanes: Lanes there are at a time, at most: while they widen, old and new ones.
        whole: Whether all lanes are there from the start.
    """

    weights: int
    lane: int
    lanes: int
    row: int = 0
    kept: int = 0
    work: int = 0
    process: int = 0
    graphs: int = 0
    most_lanes: int | None = None
    whole: bool = False

    @property
    def slot(self) -> int:
        """One full slot."""
        return self.lane + self.row + self.kept

    @property
    def least(self) -> int:
        """What the first request needs."""
        if self.whole:
            return self.most
        return self.weights + self.slot + self._beside(1)

    @property
    def most(self) -> int:
        """What full slots need."""
        lanes = self.lanes if self.most_lanes is None else self.most_lanes
        held = lanes * (self.lane + self.row) + self.lanes * self.kept
        return self.weights + held + self._beside(self.lanes)

    def _beside(self, rows: int) -> int:
        """Everything else, with so many slots used; one of them is prefilled at a time, outside its lane."""
        return self.process + rows * self.work + self.graphs + self.lane

    def __str__(self) -> str:
        held = f"{gib(self.weights)} for weights and {gib(self.slot)} for each of {self.lanes} slots"
        return f"{held}, {gib(self._beside(self.lanes))} for the rest"


def footprint(folder: Path, *, device: str, dtype: str, width: int, capacity: int, graphs: bool = False) -> Footprint:
    """The footprint of a checkpoint.

    Args:
        folder: A checkpoint.
        device: ``cpu`` or ``cuda``.
        dtype: As for :func:`~voxr_ray.voxcpm2.checkpoint.load_network`.
        width: Slots.
        capacity: Positions of a slot.
        graphs: Whether steps are captured, so that all lanes are there from the start; on a CPU, recorded.

    Raises:
        CheckpointError: The folder is no checkpoint, or the dtype is unknown.
    """
    return Sizes.of(CheckpointFiles.find(folder).config, device=device, dtype=dtype).at(width, capacity, graphs)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the footprints of a checkpoint have in common, whatever the number of slots.

    Attributes:
        config: The checkpoint's.
        on_cpu: Where replicas compute.
        size: Bytes of a weight outside the AudioVAE.
        weights: Bytes of all weights.
        decoder_state: Bytes of the decoder's state of one row.
    """

    config: ModelConfig
    on_cpu: bool
    size: int
    weights: int
    decoder_state: int

    @classmethod
    def of(cls, config: ModelConfig, *, device: str, dtype: str) -> Sizes:
        """Those of a configuration; see :func:`footprint`."""
        on_cpu = device == "cpu"
        name = dtype if dtype != "auto" else "float32" if on_cpu else config.dtype
        if name not in DTYPES:
            raise CheckpointError(f"dtype {name!r} is unknown: use float32, bfloat16 or float16")
        size = DTYPES[name].itemsize
        model, vae = (sum(prod(shape) for shape in table.values()) for table in tensor_table(config))
        with torch.device("meta"):
            state = AudioVAE(config.audio_vae_config).decoder.new_state(1)
        return cls(config, on_cpu, size, model * size + vae * FLOAT32, sum(tail.nbytes for tail in state))

    def at(self, width: int, capacity: int, graphs: bool = False) -> Footprint:
        """The footprint of so many slots of so many positions; see :func:`footprint`."""
        config = self.config
        cache_size = FLOAT32 if self.on_cpu else self.size
        positions = round_up(min(capacity, config.lm_config.max_position_embeddings), LENGTH_STEP)
        patch = config.patch_size * config.feat_dim * FLOAT32
        audio = config.patch_size * config.audio_vae_config.decoder_hop * FLOAT32
        narrower = 1 << (width - 1).bit_length() >> 1 if width > 1 else 0
        whole = graphs and not self.on_cpu
        if whole:
            most_lanes = width
        elif self.on_cpu:  # only what is used is copied, and what is not used is not there
            most_lanes = max(width, 2 * narrower)
        else:
            most_lanes = width + narrower
        return Footprint(
            weights=self.weights,
            lane=positions * lane_bytes_per_position(config, cache_size),
            lanes=width,
            row=self.decoder_state
            + 2 * config.lm_config.hidden_size * self.size
            + (1 + DECODED_PATCHES + DRAWN_AHEAD) * patch,
            kept=positions * max(patch, audio) if self.on_cpu else 0,
            work=self._work(positions, cache_size),
            process=CPU_PROCESS_BYTES if self.on_cpu else CUDA_PROCESS_BYTES,
            graphs=self._graphs(width, positions) if graphs else 0,
            most_lanes=most_lanes,
            whole=whole,
        )

    def _graphs(self, width: int, positions: int) -> int:
        """Captured graphs for one number of Euler steps, or recorded functions.

        Of those of the language models as many as are kept, of LocDiT's each width.
        """
        config = self.config
        if not self.on_cpu:
            lengths = read_lengths(positions)
            widths = min(len(stepped_widths(width)), MOST_GRAPHS // (len(lengths) + 2))
            return graph_nodes(config, widths=widths, lengths=len(lengths)) * GRAPH_NODE_BYTES
        stacks = (config.lm_config, config.residual_lm, config.encoder_lm)
        layers = MOST_TAPES * sum(stack.num_hidden_layers for stack in stacks)
        layers += len(stepped_widths(width)) * config.dit_lm.num_hidden_layers
        return layers * TAPE_LAYER_BYTES + DECODE_TAPES_BYTES

    def _work(self, positions: int, cache_size: int) -> int:
        """Bytes a row needs while it is stepped and decoded; one layer is worked on at a time.

        A CPU does one after the other, and needs whichever is more. A GPU does both at once.
        """
        config, vae = self.config, self.config.audio_vae_config
        attention = positions * attention_copies(config.lm_config, 0 if self.on_cpu else cache_size)
        local = local_values(config) * FLOAT32
        frames, channels, widest = DECODED_PATCHES * config.patch_size, vae.decoder_dim, 0
        for rate in vae.decoder_rates:
            frames, channels = frames * rate, channels // 2
            widest = max(widest, frames * channels)
        # An activation, its copy behind the state, and what becomes of it.
        decode = 4 * widest * FLOAT32
        return max(attention, local, decode) if self.on_cpu else max(attention, local) + decode


def memory_of(device: str) -> int | None:
    """Bytes of memory that a process on this machine can have at most; ``None`` if that cannot be told.

    Args:
        device: ``cpu`` or ``cuda``: of the largest GPU.
    """
    if device == "cuda":
        return max(_gpus(), default=None)
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (ValueError, OSError):
        return None
    for path in _CGROUP_LIMITS:
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def least_memory_of(device: str) -> int | None:
    """Likewise, but of the smallest GPU: where a replica runs is not known before it does."""
    return min(_gpus(), default=None) if device == "cuda" else memory_of(device)


def free_memory_of(device: str) -> int | None:
    """Likewise, but what is free of this process's GPU; what other processes use of a CPU's memory may become free."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else memory_of(device)


def _gpus() -> list[int]:
    return [torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count())]


def check_memory(needs: Footprint, device: str, has: int | None) -> None:
    """Refuse a checkpoint that this machine cannot hold.

    Args:
        needs: Of one replica.
        device: ``cpu`` or ``cuda``, for the message.
        has: Bytes there are; ``None`` refuses nothing.

    Raises:
        ConfigurationError: Not even one request would fit, or not all lanes where all are made at the start. The
            message has the numbers.
    """
    if has is not None and needs.least > has:
        raise ConfigurationError(
            f"too little memory: a replica on {device} needs at least {gib(needs.least)} ({needs}) and this machine "
            f"has {gib(has)}; use a smaller model or dtype, or lower continuous_capacity or max_batch"
        )


def gib(size: int) -> str:
    """A number of bytes, for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"
