"""Replies: exactly one terminal event, whoever ends them (rule 17), and consumers that cannot hurt the loop."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.fakes.driver import Probe
from voxr_ray.engine.reply import Done, Event, Failed, ThreadReply
from voxr_ray.errors import Cancelled, EngineStopped, ModelError
from voxr_ray.messages import AudioChunk


def chunk(index: int = 0) -> AudioChunk:
    return AudioChunk(np.zeros(4, dtype=np.float32), index, 1, 48_000)


def bound(reply: Any) -> tuple[Any, list[Any]]:
    endings: list[Any] = []
    reply.bind(endings.append)
    return reply, endings


def test_events_arrive_in_order_and_the_books_close_before_the_caller_knows() -> None:
    seen: list[int] = []
    reply = Probe(lambda event: seen.append(len(endings)))
    endings: list[Any] = []
    reply.bind(endings.append)
    reply.chunk(chunk(0))
    reply.chunk(chunk(1))
    reply.done("end")
    assert [event.index for event in reply.chunks] == [0, 1]
    assert reply.result == "end"
    assert seen == [0, 0, 1]


@pytest.mark.parametrize("second", ["chunk", "done", "fail"])
@pytest.mark.parametrize("first", ["done", "fail"])
def test_a_second_terminal_event_is_a_loud_engine_bug(first: str, second: str) -> None:
    """Rule 17."""
    events = {"chunk": chunk(), "done": "end", "fail": ModelError("no")}
    reply, endings = bound(Probe())
    getattr(reply, first)(events[first])
    with pytest.raises(RuntimeError, match="engine bug"):
        getattr(reply, second)(events[second])
    assert len(endings) == len(reply.endings) == 1


def test_an_event_without_a_job_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="engine bug"):
        Probe().done("end")


def test_one_reply_serves_one_job() -> None:
    reply, _ = bound(Probe())
    with pytest.raises(ValueError, match="one job"):
        reply.bind(lambda ending: None)


def test_a_reply_whose_job_was_refused_can_be_used_again() -> None:
    reply, _ = bound(Probe())
    reply.unbind()
    _, endings = bound(reply)
    reply.done("end")
    assert endings == [Done("end")]


def test_after_an_abort_the_owner_speaks_to_nobody() -> None:
    reply, endings = bound(Probe())
    assert reply.abort(EngineStopped("hung"))
    reply.chunk(chunk())
    reply.done("late")
    reply.fail(ModelError("later"))
    assert isinstance(reply.error, EngineStopped)
    assert len(endings) == len(reply.events) == 1


def test_an_abort_after_the_end_changes_nothing() -> None:
    reply, endings = bound(Probe())
    reply.done("end")
    assert not reply.abort(EngineStopped("hung"))
    assert reply.result == "end"
    assert len(endings) == 1


def test_an_abort_races_the_owner_and_one_of_them_ends_it() -> None:
    """Rule 17, with the watchdog and the owner thread at the same moment."""
    for _ in range(300):
        reply, endings = bound(Probe())
        start = threading.Barrier(2)

        def own(reply: Probe = reply, start: threading.Barrier = start) -> None:
            start.wait()
            reply.chunk(chunk())
            reply.done("end")

        thread = threading.Thread(target=own)
        thread.start()
        start.wait()
        reply.abort(EngineStopped("hung"))
        thread.join()
        assert len(endings) == len(reply.endings) == 1
        assert reply.events[-1] is reply.endings[0]


def test_a_consumer_that_raises_counts_as_gone() -> None:
    def explode(event: Event[Any]) -> None:
        raise OSError("socket closed")

    reply, endings = bound(Probe(explode))
    reply.chunk(chunk())
    assert reply.cancelled
    reply.fail(Cancelled("gone"))
    assert len(endings) == 1


def test_cancelling_is_harmless_at_any_time_and_twice() -> None:
    reply = Probe()
    reply.cancel()
    reply.cancel()
    _, endings = bound(reply)
    assert reply.cancelled
    reply.done("end")
    reply.cancel()
    assert endings == [Done("end")]


def test_a_consumer_may_cancel_from_inside_a_delivery() -> None:
    reply = Probe(lambda event: reply.cancel())
    bound(reply)
    reply.chunk(chunk())
    assert reply.cancelled


class TestThreadReply:
    def test_result_waits_for_the_owner(self) -> None:
        reply, _ = bound(ThreadReply())
        owner = threading.Timer(0.01, reply.done, ["end"])
        owner.start()
        assert reply.result(30) == "end"
        owner.join()

    def test_result_raises_the_jobs_error(self) -> None:
        reply, _ = bound(ThreadReply())
        reply.fail(ModelError("no"))
        with pytest.raises(ModelError, match="no"):
            reply.result(0)

    def test_result_gives_up_after_its_timeout_and_the_job_goes_on(self) -> None:
        reply, _ = bound(ThreadReply())
        with pytest.raises(TimeoutError):
            reply.result(0)
        assert not reply.cancelled

    def test_iteration_yields_chunks_until_the_end(self) -> None:
        reply, _ = bound(ThreadReply())

        def own() -> None:
            for index in range(5):
                reply.chunk(chunk(index))
            reply.done("end")

        owner = threading.Thread(target=own)
        owner.start()
        assert [each.index for each in reply] == [0, 1, 2, 3, 4]
        owner.join()

    def test_iteration_raises_in_the_place_of_the_missing_chunk(self) -> None:
        reply, _ = bound(ThreadReply())
        reply.chunk(chunk())
        reply.fail(ModelError("no"))
        seen = []
        with pytest.raises(ModelError):
            seen.extend(iter(reply))
        assert not seen or seen[0].index == 0

    def test_leaving_the_context_cancels(self) -> None:
        reply, _ = bound(ThreadReply())
        with reply:
            pass
        assert reply.cancelled


def test_failed_and_done_compare_by_content() -> None:
    error = ModelError("no")
    assert Failed(error) == Failed(error)
    assert Done(1) != Done(2)
