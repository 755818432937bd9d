"""The record: totals that only grow, consistent copies, and what a router needs to know of the batch."""

from __future__ import annotations

import pickle
import threading

import numpy as np

from tests.fakes.driver import Driver, request
from voxr_ray.engine.record import BatchState, Record, StepRecord
from voxr_ray.errors import ModelError, TooLarge
from voxr_ray.messages import Reference, Sampler


def step(slots: tuple[int, ...] = (0,)) -> StepRecord:
    return StepRecord(1.0, 0.1, 0.05, 0.0, 1, slots, Sampler(2.0, 10), 0, 0, 0, 0)


def test_totals() -> None:
    record = Record(steps=2, now_s=5.0)
    record.submitted()
    record.refused(TooLarge("x"))
    record.refused(TooLarge("x"))
    record.seated()
    record.retaken()
    record.piece(6.0)
    for _ in range(3):
        record.step(step((0, 2)))
    record.finished("stop")
    record.encoded()
    record.cancelled()
    record.failed(ModelError("x"))
    counts = record.snapshot().counts
    assert (counts.submitted, counts.seated, counts.retakes, counts.pieces) == (1, 1, 1, 1)
    assert (counts.steps, counts.patches) == (3, 6)
    assert (counts.refused, counts.finished, counts.failed) == ({"TooLarge": 2}, {"stop": 1}, {"ModelError": 1})
    assert (counts.encodes, counts.cancelled) == (1, 1)
    assert len(record.steps()) == 2
    assert record.progress_s == 6.0


def test_a_snapshot_does_not_change_afterwards() -> None:
    record = Record(steps=2, now_s=0.0)
    record.finished("stop")
    before = record.snapshot()
    record.finished("stop")
    record.step(step())
    record.publish(BatchState(rows=3), frozenset())
    assert before.counts.finished == {"stop": 1}
    assert before.last_step is None
    assert before.batch.rows == 0


def test_copies_are_whole_while_another_thread_writes() -> None:
    record = Record(steps=4, now_s=0.0)
    done = threading.Event()

    def write() -> None:
        for _ in range(3000):
            record.step(step((0, 1, 2)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        counts = record.snapshot().counts
        assert counts.patches == 3 * counts.steps
    writer.join()


def test_the_state_of_the_batch_is_what_a_router_asks_for() -> None:
    driver = Driver(max_batch=2)
    voice = Reference.of_clip(np.arange(1, 500), 16_000)
    driver.submit(request("row @patches=40@", cfg_value=1.0, reference=voice))
    driver.step()
    driver.submit(request("held", cfg_value=3.0))
    driver.submit(request("behind", cfg_value=1.0))
    driver.cycle()
    snapshot = pickle.loads(pickle.dumps(driver.record.snapshot()))  # noqa: S301
    batch = snapshot.batch
    assert (batch.rows, batch.seatings, batch.waiting, batch.held, batch.encodes) == (1, 0, 2, 2, 0)
    assert batch.sampler == Sampler(1.0, 10)
    assert batch.next_sampler == Sampler(3.0, 10)
    assert batch.cache.entries == 1
    assert {digest for digest, _ in driver.record.cached} == {voice.digest}
    driver.run()
    batch = driver.record.snapshot().batch
    assert (batch.rows, batch.waiting, batch.sampler, batch.next_sampler) == (0, 0, None, None)
