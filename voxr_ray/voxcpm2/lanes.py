"""Per-slot device state: caches, positions, hidden states, previous patch, noise and decoder state.

Lane ``slot`` is row ``slot`` of every tensor here. A lane is written from position 0 when a request is admitted and
wiped when it is released: the next occupant inherits nothing. Tensors start at one row and grow as higher slots are
seated. Owner thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.noise import NoiseStream
from voxr_ray.voxcpm2.stack import LayerCache, cache_tensors
from voxr_ray.voxcpm2.vae import State

LENGTH_STEP = 64
"""Attention reads lanes up to a multiple of this, so that its sums do not depend on how far other rows reach."""


def round_up(value: int, step: int) -> int:
    """The smallest multiple of ``step`` that is at least ``value``."""
    return -(-value // step) * step


@dataclass(slots=True, eq=False)
class Handoff:
    """A prefilled request on its way into a lane. All tensors have one row.

    Attributes:
        base_cache: Keys and values of the base LM for exactly the prefix.
        residual_cache: Likewise of the residual LM.
        base_hidden: ``(1, hidden)``.
        residual_hidden: ``(1, hidden)``.
        previous: float32 ``(patch_size, feat_dim)``, the first-patch condition.
        decoder_state: The decoder's state behind the context patches.
    """

    base_cache: list[LayerCache]
    residual_cache: list[LayerCache]
    base_hidden: Tensor
    residual_hidden: Tensor
    previous: Tensor
    decoder_state: State

    @property
    def positions(self) -> int:
        """Length of the prefix."""
        return self.base_cache[0].key.shape[2]


@dataclass(slots=True, eq=False)
class Seat:
    """What is kept of a seated request outside the tensors."""

    noise: NoiseStream
    position: int
    """Where the next patch goes."""
    pending: list[Tensor] = field(default_factory=list)
    """Patches drawn and not yet decoded, float32 ``(patch_size, feat_dim)`` each."""


@dataclass(slots=True, eq=False)
class Tensors:
    """The rows of all lanes."""

    base_cache: list[LayerCache]
    residual_cache: list[LayerCache]
    base_hidden: Tensor
    residual_hidden: Tensor
    previous: Tensor
    decoder_state: State

    def part(self, rows: slice) -> Tensors:
        """Some rows, in the same memory."""
        return Tensors(
            base_cache=[layer.part(rows) for layer in self.base_cache],
            residual_cache=[layer.part(rows) for layer in self.residual_cache],
            base_hidden=self.base_hidden[rows],
            residual_hidden=self.residual_hidden[rows],
            previous=self.previous[rows],
            decoder_state=[tail[rows] for tail in self.decoder_state],
        )

    def caches(self) -> list[Tensor]:
        """All keys and values: ``(lanes, kv_heads, positions, head_dim)`` each."""
        return cache_tensors(self.base_cache + self.residual_cache)

    def others(self) -> list[Tensor]:
        """Every other tensor; the first axis is the lane."""
        return [self.base_hidden, self.residual_hidden, self.previous, *self.decoder_state]


class Lanes:
    """The lanes of one model.

    Args:
        network: Gives shapes, dtype and device.
        width: Most lanes there will ever be.
        capacity: Positions of a lane.
        whole: Whether all lanes are made at once. Captured steps keep the addresses of the tensors, which must not
            change.
    """

    def __init__(self, network: VoxCPM2, width: int, capacity: int, *, whole: bool = False) -> None:
        self._network = network
        self.width = width
        self.capacity = capacity
        self.seats: dict[int, Seat] = {}
        self.rows = width if whole else 1
        self.tensors = self._allocate(self.rows)

    def admit(self, slot: int, handoff: Handoff, noise: NoiseStream) -> None:
        """Seat a request in a free lane, widening the tensors if the lane is not there yet.

        Raises:
            ValueError: The lane is taken, or the prefix does not fit it.
            RuntimeError: No memory to widen; the lanes are as they were.
        """
        if slot in self.seats or handoff.positions >= self.capacity:
            raise ValueError(f"lane {slot} cannot take {handoff.positions} of {self.capacity} positions")
        if slot >= self.rows:
            self._widen(slot + 1)
        into = self.tensors
        for lane_layers, layers in (
            (into.base_cache, handoff.base_cache),
            (into.residual_cache, handoff.residual_cache),
        ):
            for lane_layer, layer in zip(lane_layers, layers, strict=True):
                lane_layer.key[slot, :, : handoff.positions] = layer.key[0]
                lane_layer.value[slot, :, : handoff.positions] = layer.value[0]
        into.base_hidden[slot] = handoff.base_hidden[0]
        into.residual_hidden[slot] = handoff.residual_hidden[0]
        into.previous[slot] = handoff.previous
        for tail, value in zip(into.decoder_state, handoff.decoder_state, strict=True):
            tail[slot] = value[0]
        self.seats[slot] = Seat(noise=noise, position=handoff.positions)

    def release(self, slot: int) -> None:
        """Free a lane and wipe every row it has.

        Keys and values are zeroed too, up to where they were written: a masked position is multiplied by zero, and
        zero times a NaN that a broken take left behind would reach the next occupant.
        """
        seat = self.seats.pop(slot)
        for cache in self.tensors.caches():
            cache[slot, :, : seat.position].zero_()
        for tensor in self.tensors.others():
            tensor[slot].zero_()

    def noise(self, width: int) -> Tensor:
        """The next noise of every lane below ``width``: float32 ``(width, patch_size, feat_dim)``, zero if free.

        On the CPU, whatever the device.
        """
        config = self._network.config
        drawn = torch.zeros(width, config.patch_size, config.feat_dim)
        for slot, seat in self.seats.items():
            if slot < width:
                drawn[slot] = seat.noise.next()
        return drawn

    def positions(self, width: int) -> list[int]:
        """Where the lanes below ``width`` write their next patch; zero for free lanes."""
        return [self.seats[slot].position if slot in self.seats else 0 for slot in range(width)]

    def wipe(self) -> None:
        """Zero every lane. None may be seated."""
        if self.seats:
            raise RuntimeError("lanes that are seated cannot be wiped")
        for tensor in (*self.tensors.caches(), *self.tensors.others()):
            tensor.zero_()

    def advance(self, patches: Tensor) -> None:
        """Note the patches ``(width, patch_size, feat_dim)`` just drawn and taken into the language models."""
        for slot, seat in self.seats.items():
            if slot < patches.shape[0]:
                seat.position += 1
                seat.pending.append(patches[slot])

    def decoder_rows(self, slots: Sequence[int]) -> State:
        """Copies of the decoder states of some lanes."""
        index = torch.tensor(slots, device=self._network.device)
        return [tail.index_select(0, index) for tail in self.tensors.decoder_state]

    def store_decoder_rows(self, slots: Sequence[int], state: State) -> None:
        """Write back what :meth:`decoder_rows` gave, after a decode."""
        index = torch.tensor(slots, device=self._network.device)
        for tail, rows in zip(self.tensors.decoder_state, state, strict=True):
            tail.index_copy_(0, index, rows)

    def drop_pending(self, slots: Sequence[int]) -> None:
        """Drop the patches of some lanes, which are decoded."""
        for slot in slots:
            self.seats[slot].pending.clear()

    def _widen(self, rows: int) -> None:
        """Grow to the next power of two that holds ``rows``. All is allocated before anything changes.

        Of the caches only what is in use is copied: a lane is mostly room.
        """
        target = min(self.width, 1 << (rows - 1).bit_length())
        wider = self._allocate(target)
        used = max((seat.position for seat in self.seats.values()), default=0)
        for new, old in zip(wider.caches(), self.tensors.caches(), strict=True):
            new[: self.rows, :, :used] = old[:, :, :used]
        for new, old in zip(wider.others(), self.tensors.others(), strict=True):
            new[: self.rows] = old
        self.tensors, self.rows = wider, target

    def _allocate(self, rows: int) -> Tensors:
        network, config = self._network, self._network.config
        # Attention is computed in float32 on a CPU: a cache in that type saves converting it at every step.
        cache_dtype = torch.float32 if network.device.type == "cpu" else network.dtype
        length = round_up(self.capacity, LENGTH_STEP)

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=network.device)

        hidden = config.lm_config.hidden_size
        return Tensors(
            base_cache=network.base_lm.new_cache(rows, length, dtype=cache_dtype, device=network.device),
            residual_cache=network.residual_lm.new_cache(rows, length, dtype=cache_dtype, device=network.device),
            base_hidden=zeros(hidden, dtype=network.dtype),
            residual_hidden=zeros(hidden, dtype=network.dtype),
            previous=zeros(config.patch_size, config.feat_dim, dtype=torch.float32),
            decoder_state=network.audio_vae.decoder.new_state(rows),
        )
