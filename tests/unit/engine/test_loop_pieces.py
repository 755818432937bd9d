"""Rule 18: encodes, prefills and decodes never stall the running rows for more than a bounded amount of work."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes.driver import Driver, check_alone, request
from tests.fakes.slot_model import make_fake_model
from voxr_ray.messages import Reference

RUNNING = request("running @patches=never@", retry_badcase=False, retry_badcase_ratio_threshold=100.0)
"""A row that is there for as long as any of these tests needs one."""


def clip(patches: int, first: int = 1) -> Reference:
    samples = np.arange(patches * 160, dtype=np.int16)
    samples[0] = first
    return Reference.of_clip(samples, 16_000)


def fine(**options: int) -> Driver:
    """A model whose work comes in many small pieces."""
    return Driver(make_fake_model(encode_patches_per_piece=1, prefill_positions_per_piece=4), **options)


def pieces_between_steps(driver: Driver) -> list[int]:
    """Model calls of preparing work between two consecutive steps."""
    counts, pieces = [], None
    for call in driver.model.calls:
        if call.op == "step":
            if pieces is not None:
                counts.append(pieces)
            pieces = 0
        elif call.op in ("encode", "prefill") and pieces is not None:
            pieces += 1
    return counts


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_rule_18_fifteen_newcomers_cost_the_running_row_a_bounded_stall(limit: int) -> None:
    driver = fine(pieces_per_cycle=limit)
    driver.submit(RUNNING)
    driver.step()
    asked = [request(f"newcomer {index} @patches=8@", reference=clip(9, index)) for index in range(15)]
    replies = [driver.submit(each) for each in asked]
    for index in range(3):
        driver.encode(clip(40, 100 + index))
    driver.run()
    assert driver.counts.steps > 100
    assert max(pieces_between_steps(driver)) == limit
    for reply, each in zip(replies, asked, strict=True):
        check_alone(reply.result, each)
    driver.check_idle()


def test_rule_18_without_a_row_nothing_is_held_back_but_the_inbox_is_served() -> None:
    driver = fine()
    driver.submit(request("x" * 100, reference=clip(20)))
    driver.cycle(10)
    assert driver.rows == []
    encoded = driver.encode(Reference(digest="0", features=np.ones((1, 2, 4), dtype=np.float32)))
    driver.cycle()
    assert encoded.ended


def test_those_who_come_together_start_together() -> None:
    driver = fine()
    for index in range(8):
        driver.submit(request(f"{index}"))
    driver.step()
    assert driver.rows == list(range(8))


def test_rule_18_the_first_row_waits_for_no_more_pieces_than_there_are_slots() -> None:
    driver = fine(max_batch=8)
    driver.submit(request("1 @patches=60@"))
    for index in range(7):
        driver.submit(request(f"text number {index} @patches=60@", reference=clip(2, index)))
    driver.run(lambda: driver.rows == [0])
    before = driver.counts.pieces
    driver.step()
    assert driver.rows == [0]
    assert len(driver.seated) == 8
    assert driver.counts.pieces - before == 8 - 1, "the cycle that seated the first row did one of the eight"
    driver.run(lambda: len(driver.rows) == 8)


def test_a_batch_that_opens_listens_to_its_inbox() -> None:
    driver = fine()
    driver.submit(request("the first"))
    driver.submit(request("the second, which takes some pieces"))
    driver.run(lambda: driver.rows == [0])
    late = driver.submit(request("late"))
    left = driver.submit(request("left"))
    left.cancel()
    driver.step()
    assert driver.rows == [0, 1, 2], "who comes while it opens starts with it"
    assert left.ended
    assert not late.ended


def test_a_row_alone_starts_at_once() -> None:
    driver = fine()
    for index in range(3):
        driver.encode(clip(40, index))
    driver.submit(request("one"))
    driver.run(lambda: driver.rows == [0])
    assert driver.counts.steps == 1, "recordings of others do not keep it"


def test_once_somebody_listens_newcomers_wait_their_turn() -> None:
    driver = fine(pieces_per_cycle=1)
    driver.submit(RUNNING)
    driver.step()
    for index in range(4):
        driver.submit(request(f"text number {index} @patches=60@"))
    steps = driver.counts.steps
    driver.run(lambda: len(driver.rows) == 5)
    assert driver.counts.steps - steps >= 4


@pytest.mark.parametrize("limit", [1, 2])
def test_encodes_and_seatings_take_turns(limit: int) -> None:
    driver = fine(pieces_per_cycle=limit)
    driver.submit(RUNNING)
    driver.step()
    before = len(driver.model.calls)
    driver.submit(request("x" * 60))
    driver.encode(clip(16))
    driver.run(lambda: driver.counts.encodes == 1)
    ops = [call.op for call in list(driver.model.calls)[before:] if call.op in ("encode", "prefill")]
    assert {tuple(ops[index : index + 2]) for index in range(0, len(ops) - 1, 2)} <= {
        ("encode", "prefill"),
        ("prefill", "encode"),
    }


def test_a_flood_of_encodes_does_not_keep_a_job_from_its_slot() -> None:
    driver = fine(pieces_per_cycle=1, max_encode_queue=64)
    driver.submit(RUNNING)
    driver.step()
    for index in range(60):
        driver.encode(clip(30, index))
    job = driver.submit(request("job"))
    driver.run(lambda: job.ended)
    assert driver.record.snapshot().batch.encodes > 50


def test_a_flood_of_jobs_does_not_keep_an_encode_waiting() -> None:
    driver = fine(pieces_per_cycle=1, max_queue=64)
    driver.submit(RUNNING)
    driver.step()
    for index in range(60):
        driver.submit(request(f"{index} " + "x" * 80, seed=index))
    encoded = driver.encode(clip(30))
    driver.run(lambda: encoded.ended)
    assert driver.record.snapshot().batch.waiting > 40


def test_the_oldest_seating_comes_first() -> None:
    driver = fine(pieces_per_cycle=1)
    driver.submit(RUNNING)
    driver.step()
    driver.submit(request("x" * 50))
    driver.submit(request("short"))
    driver.run(lambda: 2 in driver.rows)
    assert driver.rows == [0, 1, 2]


def test_the_record_tells_steps_and_stalls() -> None:
    driver = fine(pieces_per_cycle=2)
    tick = {"step": 0.010, "decode": 0.004, "prefill": 0.003, "encode": 0.003}

    def take_time(op: str) -> None:
        driver.now_s += tick[op]

    for op in tick:
        driver.model.hooks[op] = lambda call, op=op: take_time(op)
    driver.submit(RUNNING)
    driver.step()
    driver.submit(request("x" * 40))
    driver.cycle(3)
    steps = driver.record.steps()
    assert steps[0].gap_s == 0.0
    assert steps[0].step_s == pytest.approx(0.010)
    assert steps[0].decode_s == pytest.approx(0.004)
    assert [step.pieces for step in steps[1:]] == [2, 2, 2]
    assert [step.gap_s for step in steps[1:]] == pytest.approx([0.006, 0.006, 0.006])
    assert steps[-1].sampler == request().sampler
    assert driver.record.snapshot().last_step == steps[-1]


def test_time_without_rows_is_not_a_stall() -> None:
    driver = Driver()
    for _ in range(2):
        driver.submit(request())
        driver.run()
        driver.now_s += 1000.0
    assert {step.gap_s for step in driver.record.steps()} == {0.0}


def test_the_record_forgets_all_but_the_latest_steps() -> None:
    driver = Driver(record_steps=5)
    driver.submit(request("@patches=20@"))
    driver.run()
    assert len(driver.record.steps()) == 5
    assert driver.counts.steps == 20
