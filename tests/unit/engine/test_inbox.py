"""The door: bounded, consistent with the list of jobs inside, and never left open behind a stopped engine."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.fakes.driver import Probe, request
from voxr_ray.engine.inbox import Door, Inbox
from voxr_ray.engine.jobs import EncodeJob, RenderJob
from voxr_ray.engine.model import Padding, Plan
from voxr_ray.errors import EngineStopped, Overloaded
from voxr_ray.messages import Recording


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def make(width: int = 2, max_queue: int = 3, max_encodes: int = 2) -> Inbox:
    return Inbox(width=width, max_queue=max_queue, max_encodes=max_encodes, clock=Clock())


def render(inbox: Inbox) -> RenderJob:
    return RenderJob(request(), Plan((1,), 1, 2), 10, 1, False, Probe(), 0.0, inbox.next_sequence())


def encode(inbox: Inbox) -> EncodeJob:
    recording = Recording.of_clip(np.zeros(10), 16_000)
    return EncodeJob(recording, Padding.RIGHT, Probe(), inbox.next_sequence())


def test_width_plus_queue_jobs_come_in_and_the_next_is_refused() -> None:
    """B6."""
    inbox = make()
    jobs = [render(inbox) for _ in range(5)]
    for job in jobs:
        inbox.knock()
        inbox.post(job)
    for refuse in (inbox.knock, lambda: inbox.post(render(inbox))):
        with pytest.raises(Overloaded, match="all 2 slots are taken and 3 jobs wait, the limit is 3") as caught:
            refuse()
        assert 1.0 <= (caught.value.retry_after_s or 0) <= 30.0
    inbox.settle(jobs[3])
    inbox.knock()
    inbox.post(render(inbox))


def test_draining_makes_no_room_but_settling_does() -> None:
    inbox = make(width=1, max_queue=0)
    job = render(inbox)
    inbox.post(job)
    assert inbox.drain() == [job]
    assert not inbox.queued
    with pytest.raises(Overloaded):
        inbox.post(render(inbox))
    inbox.settle(job)
    inbox.post(render(inbox))


def test_encodes_have_a_limit_of_their_own() -> None:
    """Rule 2: a full render queue does not keep encodes out, nor the other way round."""
    inbox = make(width=1, max_queue=0, max_encodes=2)
    inbox.post(render(inbox))
    first = encode(inbox)
    inbox.post(first)
    inbox.post(encode(inbox))
    with pytest.raises(Overloaded, match="the limit is 2"):
        inbox.post(encode(inbox))
    inbox.settle(first)
    inbox.post(encode(inbox))
    assert (inbox.load.renders, inbox.load.encodes) == (1, 2)


def test_jobs_are_drained_in_the_order_they_came() -> None:
    inbox = make()
    jobs = [render(inbox), encode(inbox), render(inbox)]
    for job in jobs:
        inbox.post(job)
    assert inbox.drain() == jobs
    assert inbox.drain() == []


def test_busy_since_is_the_start_of_the_unbroken_stretch() -> None:
    clock = Clock()
    inbox = Inbox(width=2, max_queue=3, max_encodes=2, clock=clock)
    assert inbox.load.busy_since_s is None
    first, second = render(inbox), encode(inbox)
    inbox.post(first)
    clock.now_s = 11.0
    inbox.post(second)
    inbox.settle(first)
    assert inbox.load.busy_since_s == 10.0
    inbox.settle(second)
    assert inbox.load.busy_since_s is None


def test_a_closed_door_keeps_those_inside() -> None:
    inbox = make()
    job = render(inbox)
    inbox.post(job)
    inbox.close()
    assert inbox.door is Door.CLOSING
    with pytest.raises(EngineStopped, match="closing"):
        inbox.post(render(inbox))
    assert inbox.drain() == [job]


def test_a_stopped_door_names_its_first_cause_and_hands_out_those_inside() -> None:
    inbox = make()
    job = render(inbox)
    inbox.post(job)
    first = EngineStopped("first")
    first.__cause__ = OSError("device")
    assert inbox.stop(first) == [job]
    inbox.settle(job)
    assert inbox.stop(EngineStopped("second")) == []
    for _ in range(2):
        with pytest.raises(EngineStopped, match="first") as caught:
            inbox.post(render(inbox))
        assert caught.value is not first
        assert isinstance(caught.value.__cause__, OSError)
    inbox.close()
    assert inbox.door is Door.STOPPED


@pytest.mark.parametrize("news", ["post", "close", "stop"])
def test_waiting_ends_with_news(news: str) -> None:
    inbox = make()
    acts = {
        "post": lambda: inbox.post(render(inbox)),
        "close": inbox.close,
        "stop": lambda: inbox.stop(EngineStopped("x")),
    }
    waiter = threading.Thread(target=inbox.wait, args=(None,))
    waiter.start()
    acts[news]()
    waiter.join(30)
    assert not waiter.is_alive()
    inbox.wait(None)


def test_waiting_ends_after_its_timeout() -> None:
    make().wait(0.001)


def test_nobody_slips_in_behind_a_stop() -> None:
    """Rule 15: whatever the timing, a job is refused or among those handed out."""
    for _ in range(50):
        inbox = make(width=4, max_queue=100)
        start = threading.Barrier(5)
        entered: list[RenderJob] = []

        def submit(inbox: Inbox = inbox, start: threading.Barrier = start, entered: list[RenderJob] = entered) -> None:
            start.wait()
            for _ in range(10):
                job = render(inbox)
                try:
                    inbox.post(job)
                except EngineStopped:
                    return
                entered.append(job)

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        handed_out = inbox.stop(EngineStopped("x"))
        for thread in threads:
            thread.join()
        assert {job.sequence for job in handed_out} == {job.sequence for job in entered}
