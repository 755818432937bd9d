"""Threads that share the rows of a call out among a processor's cores.

A row's bits do not depend on its company, so a batch may be cut anywhere. Groups of rows that run side by side, each
on one thread, do not wait for each other behind every operator, as the threads of one operator do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from threading import Barrier
from typing import TypeVar

import torch

Result = TypeVar("Result")


LEAST_ROWS = 4
"""Rows that are worth a thread of their own. With fewer, the threads of one operator get more done."""


class RowWorkers:
    """As many threads as the arithmetic of the owner thread has, each of which computes with one.

    Owner thread only; it waits for what it asks for.

    Args:
        threads: How many.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads, "rows")
            started = Barrier(threads)
            wait([self._pool.submit(_compute_alone, started) for _ in range(threads)])
            torch.set_num_threads(threads)  # what they set counts for every thread that torch does not know yet

    def split(self, rows: int) -> list[slice]:
        """``rows`` cut into parts of nearly the same length, one for each thread; whole if those would be too short."""
        parts = self.threads if rows >= LEAST_ROWS * self.threads else 1
        ends = [rows * part // parts for part in range(parts + 1)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def run(self, tasks: Sequence[Callable[[], Result]]) -> list[Result]:
        """What the tasks give, in their order; a single one runs on this thread, with all of its threads.

        Raises what the first that failed of them has raised, when none runs any more.
        """
        if self._pool is None or len(tasks) == 1:
            return [task() for task in tasks]
        futures = [self._pool.submit(_infer, task) for task in tasks]
        try:
            wait(futures)
            return [future.result() for future in futures]
        finally:
            del futures  # an error's traceback would keep them, and they the error


def _compute_alone(started: Barrier) -> None:
    started.wait()  # so that each thread of the pool takes one of these
    torch.get_num_threads()  # torch gives a thread its number when it first asks, whatever was set before
    torch.set_num_threads(1)


def _infer(task: Callable[[], Result]) -> Result:
    with torch.inference_mode():  # a mode of the thread
        return task()
