"""The engine's settings. Plain values, checked once; no thread owns them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from voxr_ray.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How one engine batches, queues and streams.

    Attributes:
        max_batch: Most rows that step together. A ceiling: memory grows only as higher slots are seated.
        continuous_capacity: Cache positions of one slot, prefix and patches together. Capped by the positions the
            model can represent. Deliberately not the largest request possible: every slot pays for all of it.
        batch_window_s: How long an idle engine waits, from the first job's submission, for others to start with.
        max_queue: Jobs that may wait beyond ``max_batch``; one more is refused.
        max_encode_queue: Encode jobs that may be unfinished at once; one more is refused.
        stream_chunk_patches: Patches in a streamed chunk.
        first_chunk_patches: Patches in the first chunk: fewer lower the time to first audio.
        reference_cache_bytes: Memory for encoded recordings; 0 keeps none.
        pieces_per_cycle: Pieces of encode and seating work between two steps of running rows. More seat newcomers
            sooner, fewer keep the others' pace.
        record_steps: Steps the record remembers.
    """

    max_batch: int = 16
    continuous_capacity: int = 4096
    batch_window_s: float = 0.005
    max_queue: int = 64
    max_encode_queue: int = 64
    stream_chunk_patches: int = 2
    first_chunk_patches: int = 1
    reference_cache_bytes: int = 256 * 2**20
    pieces_per_cycle: int = 3
    record_steps: int = 1024

    def __post_init__(self) -> None:
        least = dict.fromkeys((each.name for each in fields(self)), 1)
        least |= {"batch_window_s": 0, "max_queue": 0, "reference_cache_bytes": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if not math.isfinite(value) or value < minimum:
                raise ConfigurationError(f"{name} is {value}: give {minimum} or more", param=name)
        if self.first_chunk_patches > self.stream_chunk_patches:
            raise ConfigurationError(
                f"first_chunk_patches is {self.first_chunk_patches}, above stream_chunk_patches "
                f"({self.stream_chunk_patches}): the first chunk may only be the smaller one",
                param="first_chunk_patches",
            )
