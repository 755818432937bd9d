"""How many slots a replica has, and how long they are, where the operator chose neither.

The choice depends on what the device has in all, not on what happens to be free: an update is built while the old
replicas still run. Whether it is free is checked by each replica when it starts (:func:`check_memory`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxr_ray.config import Settings
from voxr_ray.engine.widths import stepped_widths
from voxr_ray.errors import ConfigurationError
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles
from voxr_ray.voxcpm2.footprint import Footprint, Sizes, footprint, gib, least_memory_of

_log = logging.getLogger(__name__)

MOST_SLOTS = {"cpu": 16, "cuda": 64}
"""Slots that are chosen at most, by device. A CPU is busy long before; a GPU's matrix products fill a block of rows."""

CAPACITIES = (4096, 2048, 1024)
"""Positions that are chosen, best first. The last holds a long sentence with a long recording."""

FEW_SLOTS = 4
"""Slots below which shorter ones are better."""

USED = 0.9
"""Share of the memory that the choice may fill: estimates are no promises, and allocators keep gaps."""


@dataclass(frozen=True, slots=True)
class Size:
    """Slots, and positions of each."""

    width: int
    capacity: int


def choose_size(
    sizes: Sizes, *, device: str, has: int, width: int | None, capacity: int | None, graphs: bool = False
) -> Size:
    """The most slots that all fit the memory when they are full, as long as possible but rather shorter than few.

    Args:
        sizes: Of the checkpoint.
        device: ``cpu`` or ``cuda``.
        has: Bytes that one replica has.
        width: Slots, where the operator chose.
        capacity: Positions, where the operator chose.
        graphs: Whether steps are captured, or recorded.

    Raises:
        ConfigurationError: Nothing that may be chosen fits. The message has the numbers.
    """
    widths = [width] if width is not None else list(reversed(stepped_widths(MOST_SLOTS[device])))
    capacities = [capacity] if capacity is not None else list(CAPACITIES)
    least: Footprint | None = None
    for size in _in_order(widths, capacities):
        least = sizes.at(size.width, size.capacity, graphs)
        if least.most <= USED * has:
            return size
    if least is None:
        raise ValueError("no widths and capacities to choose from")
    raise ConfigurationError(
        f"too little memory: the least that a replica on {device} can be given needs {gib(least.most)} ({least}) and "
        f"it may fill {gib(int(USED * has))} of {gib(has)}; use a smaller model or dtype, or set max_batch and "
        "continuous_capacity"
    )


def needs_of(settings: Settings, folder: Path) -> Footprint:
    """What a replica with these settings needs."""
    return footprint(
        folder,
        device=settings.device,
        dtype=settings.dtype,
        width=settings.max_batch,
        capacity=settings.continuous_capacity,
        graphs=_captures(settings),
    )


def sharers(settings: Settings) -> int:
    """Replicas that can share the memory of this machine: as many as its CPUs; a GPU is each one's own."""
    if settings.device != "cpu":
        return 1
    reserved = _number(settings.replica_options.get("num_cpus"), settings.threads or 1)
    room = int((os.cpu_count() or 1) / reserved)
    return max(1, min(settings.num_replicas or settings.max_replicas or 1, room))


def with_size(settings: Settings, folder: Path) -> Settings:
    """Settings with the width and the capacity that fit this machine, where the operator chose neither.

    Raises:
        ConfigurationError: Nothing that may be chosen fits.
    """
    width = settings.max_batch if "max_batch" in settings.model_fields_set else None
    capacity = settings.continuous_capacity if "continuous_capacity" in settings.model_fields_set else None
    if width is not None and capacity is not None:
        return settings
    whole = least_memory_of(settings.device)
    if whole is None:
        _log.info(
            "slots stay at %d of %d positions: this machine has no device to choose them by",
            settings.max_batch,
            settings.continuous_capacity,
        )
        return settings
    replicas = sharers(settings)
    has = int(whole * min(1.0, _number(settings.replica_options.get("num_gpus"), 1.0))) // replicas
    sizes = Sizes.of(CheckpointFiles.find(folder).config, device=settings.device, dtype=settings.dtype)
    wanted: dict[str, Any] = {
        "device": settings.device,
        "width": width,
        "capacity": capacity,
        "graphs": _captures(settings),
    }
    try:
        size = choose_size(sizes, has=has, **wanted)
    except ConfigurationError:
        if replicas == 1:
            raise
        # Not all of them run here, then.
        size = choose_size(sizes, has=whole, **wanted)
    _log.info("%d slots of %d positions fit %s", size.width, size.capacity, gib(has))
    return settings.with_size(size.width, size.capacity)


def _number(option: Any, default: float) -> float:
    """An actor option that Ray has yet to check."""
    return option if isinstance(option, int | float) and option > 0 else default


def _captures(settings: Settings) -> bool:
    return settings.cuda_graphs if settings.device == "cuda" else settings.cpu_graphs


def _in_order(widths: Sequence[int], capacities: Sequence[int]) -> Iterator[Size]:
    """What to try, best first; widths descend."""
    for capacity in capacities:
        yield from (Size(width, capacity) for width in widths if width >= FEW_SLOTS)
    for width in widths:
        yield from (Size(width, capacity) for capacity in capacities if width < FEW_SLOTS)
