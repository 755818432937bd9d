"""What a replica needs of its device's memory, worked out from the configuration before anything is loaded.

Counted are the weights and the lanes' caches, which are all of it but for work space. Lanes take memory as they are
used: a slot that nobody ever sat in costs nothing, a full one everything. Importing this loads torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from voxr_ray.errors import CheckpointError, ConfigurationError
from voxr_ray.voxcpm2.checkpoint import DTYPES, CheckpointFiles
from voxr_ray.voxcpm2.lanes import LENGTH_STEP, round_up
from voxr_ray.voxcpm2.step_cost import lane_bytes_per_position
from voxr_ray.voxcpm2.weights import tensor_table

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one replica.

    Attributes:
        weights: All weights, in the types they are kept in.
        lane: Keys and values of one slot that is full.
        lanes: Slots.
    """

    weights: int
    lane: int
    lanes: int

    @property
    def least(self) -> int:
        """What the first request needs."""
        return self.weights + self.lane

    @property
    def most(self) -> int:
        """What full slots need."""
        return self.weights + self.lanes * self.lane

    def __str__(self) -> str:
        return f"{gib(self.weights)} for weights and {gib(self.lane)} for each of {self.lanes} slots"


def footprint(folder: Path, *, device: str, dtype: str, width: int, capacity: int) -> Footprint:
    """The footprint of a checkpoint.

    Args:
        folder: A checkpoint.
        device: ``cpu`` or ``cuda``.
        dtype: As for :func:`~voxr_ray.voxcpm2.checkpoint.load_network`.
        width: Slots.
        capacity: Positions of a slot.

    Raises:
        CheckpointError: The folder is no checkpoint, or the dtype is unknown.
    """
    config = CheckpointFiles.find(folder).config
    on_cpu = device == "cpu"
    name = dtype if dtype != "auto" else "float32" if on_cpu else config.dtype
    if name not in DTYPES:
        raise CheckpointError(f"dtype {name!r} is unknown: use float32, bfloat16 or float16")
    size = DTYPES[name].itemsize
    model, vae = (sum(prod(shape) for shape in table.values()) for table in tensor_table(config))
    positions = round_up(min(capacity, config.lm_config.max_position_embeddings), LENGTH_STEP)
    cache_size = torch.float32.itemsize if on_cpu else size
    lane = positions * lane_bytes_per_position(config, cache_size)
    return Footprint(weights=model * size + vae * torch.float32.itemsize, lane=lane, lanes=width)


def memory_of(device: str) -> int | None:
    """Bytes of memory that a process on this machine can have at most; ``None`` if that cannot be told.

    Args:
        device: ``cpu`` or ``cuda``: of the largest GPU.
    """
    if device == "cuda":
        sizes = [torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count())]
        return max(sizes, default=None)
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


def check_memory(needs: Footprint, device: str, has: int | None) -> None:
    """Refuse a checkpoint that this machine cannot hold.

    Args:
        needs: Of one replica.
        device: ``cpu`` or ``cuda``, for the message.
        has: Bytes there are; ``None`` refuses nothing.

    Raises:
        ConfigurationError: Not even one request would fit. The message has the numbers.
    """
    if has is not None and needs.least > has:
        raise ConfigurationError(
            f"too little memory: a replica on {device} needs at least {gib(needs.least)} ({needs}) and this machine "
            f"has {gib(has)}; use a smaller model or dtype, or lower continuous_capacity"
        )


def gib(size: int) -> str:
    """A number of bytes, for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"
