"""The slot table: lowest free slot first, one sampler, explicit occupants."""

from __future__ import annotations

import pytest

from tests.fakes.driver import Probe, request
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.model import ModelSpec, Plan
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.row import Row
from voxr_ray.engine.seating import Conditioning, Seating
from voxr_ray.engine.slots import SlotTable

SPEC = ModelSpec(48_000, 16_000, 4, 2, 2, 4, 100)


def job(sequence: int) -> RenderJob:
    return RenderJob(request(), Plan((1,), 1, 2), 10, 1, False, Probe(), 0.0, sequence)


def seating(sequence: int) -> Seating:
    return Seating(job(sequence), iter(()), 0.0)  # type: ignore[arg-type]


def row(sequence: int) -> Row:
    return Row(job(sequence), Conditioning(None, None), SPEC, EngineOptions(), 0.0)


def test_the_lowest_free_slot_is_taken() -> None:
    """Rule 6."""
    slots = SlotTable(3)
    for expected in range(3):
        assert slots.lowest_free() == expected
        slots.put(expected, row(expected))
    slots.clear(1)
    assert slots.lowest_free() == 1
    assert slots.free == 1


def test_a_full_table_has_no_free_slot() -> None:
    slots = SlotTable(1)
    slots.put(0, seating(1))
    with pytest.raises(ValueError):
        slots.lowest_free()


def test_rows_and_seatings_are_told_apart_and_seatings_come_oldest_first() -> None:
    slots = SlotTable(5)
    slots.put(0, seating(9))
    slots.put(2, row(3))
    slots.put(3, seating(4))
    slots.put(4, row(8))
    assert [slot for slot, _ in slots.rows()] == [2, 4]
    assert [slot for slot, _ in slots.seatings()] == [3, 0]
    assert [slot for slot, _ in slots.occupants()] == [0, 2, 3, 4]


def test_the_sampler_is_the_occupants_and_goes_with_the_last_one() -> None:
    """Rule 5: it is cleared when the batch empties, and a reserved slot counts."""
    slots = SlotTable(2)
    assert slots.sampler is None
    assert slots.empty
    slots.put(1, seating(1))
    assert slots.sampler == request().sampler
    slots.clear(1)
    assert slots.sampler is None
    assert slots.empty
