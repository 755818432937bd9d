"""The slot table: who sits where. Owner thread; reading it from elsewhere tears.

A slot is free, or its occupant is a :class:`~voxr_ray.engine.seating.Seating` (reserved while its job is prepared) or
a :class:`~voxr_ray.engine.row.Row` (its lane is seated and steps).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from voxr_ray.engine.row import Row
from voxr_ray.engine.seating import Seating
from voxr_ray.messages import Sampler

Occupant: TypeAlias = Seating | Row


class SlotTable:
    """A fixed number of slots, filled from the lowest so that steps cover a short prefix.

    Args:
        width: Number of slots.
    """

    def __init__(self, width: int) -> None:
        self._slots: list[Occupant | None] = [None] * width

    @property
    def width(self) -> int:
        """Number of slots."""
        return len(self._slots)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._slots.count(None)

    @property
    def empty(self) -> bool:
        """Whether all are free."""
        return self.free == self.width

    @property
    def sampler(self) -> Sampler | None:
        """The sampler all occupants share; ``None`` while there is no occupant.

        Read off an occupant rather than stored, so that it cannot outlive the batch it belongs to.
        """
        return next((occupant.job.sampler for _, occupant in self.occupants()), None)

    def lowest_free(self) -> int:
        """The slot the next job takes.

        Raises:
            ValueError: All are taken.
        """
        return self._slots.index(None)

    def put(self, slot: int, occupant: Occupant) -> None:
        """Give a slot to ``occupant``, in the place of whoever had it."""
        self._slots[slot] = occupant

    def clear(self, slot: int) -> None:
        """Free a slot."""
        self._slots[slot] = None

    def occupants(self) -> Iterator[tuple[int, Occupant]]:
        """Taken slots in order, with their occupants."""
        return ((slot, occupant) for slot, occupant in enumerate(self._slots) if occupant is not None)

    def rows(self) -> list[tuple[int, Row]]:
        """Seated slots in order, with their rows. A copy: slots may be cleared while it is walked."""
        return [(slot, occupant) for slot, occupant in self.occupants() if isinstance(occupant, Row)]

    def seatings(self) -> list[tuple[int, Seating]]:
        """Reserved slots, the oldest submission first. A row taken again is older than all that wait."""
        found = [(slot, occupant) for slot, occupant in self.occupants() if isinstance(occupant, Seating)]
        return sorted(found, key=lambda entry: entry[1].job.sequence)
