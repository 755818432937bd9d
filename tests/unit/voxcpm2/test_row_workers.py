"""Rows shared out among threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from voxr_ray.voxcpm2.row_workers import LEAST_ROWS, RowWorkers


@pytest.fixture
def workers() -> Iterator[RowWorkers]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield RowWorkers(3)
    torch.set_num_threads(before)


@given(rows=st.integers(1, 300), threads=st.integers(1, 16))
def test_parts_are_all_rows_in_order_and_nearly_equal(rows: int, threads: int) -> None:
    workers = RowWorkers(1)
    workers.threads = threads
    parts = workers.split(rows)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
    lengths = [part.stop - part.start for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert len(parts) == (threads if rows >= LEAST_ROWS * threads else 1)


def test_results_come_in_the_order_of_the_tasks(workers: RowWorkers) -> None:
    both = threading.Barrier(2)

    def second() -> str:
        both.wait()
        return "second"

    def first() -> str:
        both.wait()  # only when the other one runs too, which is beside it
        return "first"

    assert workers.run([first, second]) == ["first", "second"]


def test_each_computes_with_one_thread_and_infers(workers: RowWorkers) -> None:
    def look() -> tuple[int, bool, str]:
        return torch.get_num_threads(), torch.is_inference_mode_enabled(), threading.current_thread().name

    found = workers.run([look] * 6)
    assert {(count, infers) for count, infers, _ in found} == {(1, True)}
    assert all(name.startswith("rows") for _, _, name in found)
    assert torch.get_num_threads() == 3, "the owner's own number stays"
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [3], "so does that of threads which are none of these"


def test_a_single_task_runs_here(workers: RowWorkers) -> None:
    assert workers.run([threading.current_thread]) == [threading.current_thread()]
    assert RowWorkers(1).run([threading.current_thread] * 3) == [threading.current_thread()] * 3


def test_an_error_is_raised_when_nothing_runs_any_more(workers: RowWorkers) -> None:
    running, ended = threading.Event(), []

    def fail() -> None:
        running.wait()
        raise ValueError("broken")

    def go_on(index: int) -> None:
        running.set()
        ended.append(index)

    with pytest.raises(ValueError, match="broken"):
        workers.run([fail, *(partial(go_on, index) for index in range(5))])
    assert sorted(ended) == list(range(5))
