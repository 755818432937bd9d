"""Rows: when a take ends, when a chunk is due, and what is refused as audio."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes.driver import Probe, request
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.model import ModelSpec, Plan
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.row import Row
from voxr_ray.engine.seating import Conditioning
from voxr_ray.errors import ModelError
from voxr_ray.messages import StopReason

SPEC = ModelSpec(48_000, 16_000, 4, 2, 2, 4, 100)


def make(budget: int = 100, min_len: int = 0, first: int = 1, then: int = 2) -> Row:
    plan = Plan((1, 2, 3), 3, 4)
    job = RenderJob(request(min_len=min_len), plan, budget, 7, True, Probe(), 0.0, 1, take=2)
    options = EngineOptions(first_chunk_patches=first, stream_chunk_patches=then)
    return Row(job, Conditioning(None, None), SPEC, options, 0.0)


def draw(row: Row, *, stop: bool = False) -> None:
    row.draw(stop=stop)
    row.add(np.full(4, row.drawn, dtype=np.float32))


@pytest.mark.parametrize("min_len", [0, 2, 5])
def test_a_stop_on_the_first_patch_still_gives_the_documented_minimum(min_len: int) -> None:
    """S3: the shortest take has ``min_len + 2`` patches."""
    row = make(min_len=min_len)
    while row.ending is None:
        draw(row, stop=True)
    assert row.drawn == min_len + 2
    assert row.ending is StopReason.STOP


def test_without_a_stop_it_ends_at_its_budget_and_says_so() -> None:
    """S1."""
    row = make(budget=9)
    while row.ending is None:
        draw(row)
    assert row.drawn == 9
    assert row.ending is StopReason.LENGTH


def test_a_budget_below_the_minimum_limits() -> None:
    row = make(budget=1, min_len=5)
    draw(row, stop=True)
    assert row.ending is StopReason.LENGTH


def test_a_stop_at_the_last_patch_of_the_budget_is_a_stop() -> None:
    row = make(budget=3)
    for stop in (False, False, True):
        draw(row, stop=stop)
    assert row.ending is StopReason.STOP


@pytest.mark.parametrize(("first", "then", "sizes"), [(1, 2, [1, 2, 2, 2]), (2, 5, [2, 5]), (1, 1, [1] * 7)])
def test_chunks_are_cut_where_the_options_say(first: int, then: int, sizes: list[int]) -> None:
    """Rule 11."""
    row = make(first=first, then=then)
    cut = []
    for _ in range(7):
        draw(row)
        if row.chunk_due:
            cut.append(row.cut())
    assert [len(chunk.samples) // 4 for chunk in cut] == sizes
    assert [chunk.index for chunk in cut] == list(range(len(sizes)))
    assert np.concatenate([chunk.samples for chunk in cut])[::4].tolist() == list(range(1, 8))
    assert all(chunk.summary is None for chunk in cut)


def test_the_last_chunk_carries_the_summary() -> None:
    row = make()
    for stop in (False, False, True):
        draw(row, stop=stop)
    last = row.cut()
    assert last.summary is not None
    assert (last.summary.seed, last.summary.takes, last.summary.patches) == (7, 2, 3)
    assert last.summary.stop_reason is StopReason.STOP
    assert last.summary.text_tokens == 3


def test_the_result_is_everything_in_order() -> None:
    row = make(budget=3)
    for _ in range(3):
        draw(row)
    result = row.result(StopReason.LENGTH)
    assert result.samples.tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert result.samples.dtype == np.float32


def test_audio_is_copied_because_the_model_may_reuse_its_buffer() -> None:
    """B1: no shared scratch buffers."""
    row = make(budget=2)
    scratch = np.zeros(4, dtype=np.float32)
    for value in (1, 2):
        row.draw(stop=False)
        scratch[:] = value
        row.add(scratch)
    assert row.result(StopReason.LENGTH).samples.tolist() == [1.0] * 4 + [2.0] * 4


@pytest.mark.parametrize("size", [0, 3, 5, 8])
def test_audio_of_another_length_than_the_patch_is_an_error(size: int) -> None:
    """F9: a model that yields nothing is an error, not an empty answer."""
    row = make()
    row.draw(stop=False)
    with pytest.raises(ModelError, match=r"expected \(4,\)"):
        row.add(np.zeros(size, dtype=np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_audio_that_is_not_finite_is_an_error(value: float) -> None:
    row = make()
    row.draw(stop=False)
    with pytest.raises(ModelError, match="not finite"):
        row.add(np.array([0, value, 0, 0], dtype=np.float32))
