"""A router's reckoning of an engine, against the engine's own waiting list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from voxr_ray.engine.waiting import WaitingList
from voxr_ray.serve.routing.shadow import Shadow
from voxr_ray.serve.routing.values import CallTag, Report, SamplerKey, Seats, Waiter

A, B, C = SamplerKey(1.0, 10), SamplerKey(2.0, 10), SamplerKey(3.0, 10)
WIDTH, ROOM = 3, 9


def tag(number: int, router: str = "me") -> CallTag:
    return CallTag(router, number)


class Engine:
    """Slots and the engine's waiting list, without time."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.list: Any = WaitingList()
        self.waiting: list[Any] = []

    def add(self, number: int, sampler: SamplerKey) -> None:
        job = SimpleNamespace(moved=False, number=number, sampler=sampler, gone=False)
        self.list.add(job)
        self.waiting.append(job)
        self.fill()

    def remove(self, number: int) -> None:
        for job in [job for job in self.rows if job.number == number]:
            self.rows.remove(job)
        for job in [job for job in self.waiting if job.number == number]:
            job.gone = True
            self.list.take_gone()
            self.waiting.remove(job)
        self.fill()

    def fill(self) -> None:
        if self.rows:
            taken = self.list.take_joiners(self.rows[0].sampler, WIDTH - len(self.rows))
        else:
            taken = self.list.take_openers(WIDTH)
        self.rows += taken
        self.waiting = [job for job in self.waiting if job not in taken]


@given(st.lists(st.one_of(st.sampled_from([A, B, C]), st.integers(0, 20)), max_size=40))
def test_alone_a_router_knows_who_has_a_slot(events: list[SamplerKey | int]) -> None:
    """A sampler is a new call; a number ends the call at that place, whether it runs or waits."""
    shadow, engine = Shadow("r", WIDTH, ROOM), Engine()
    inside: list[int] = []
    for number, event in enumerate(events):
        if isinstance(event, int):
            if inside:
                ended = inside.pop(event % len(inside))
                shadow.remove(tag(ended))
                engine.remove(ended)
        else:
            inside.append(number)
            shadow.add(tag(number), event)
            engine.add(number, event)
        view = shadow.view
        assert view.rows == len(engine.rows)
        assert view.running == (engine.rows[0].sampler if engine.rows else None)
        assert [waiter.tag.number for waiter in shadow.waiting()] == [job.number for job in engine.waiting]
        assert view.waiting == len(engine.waiting)
        assert view.idle == (not inside)


def test_a_report_tells_of_other_routers() -> None:
    shadow = Shadow("r", WIDTH, ROOM)
    shadow.add(tag(0), A)
    report = Report(
        seats=(Seats("me", A, 1), Seats("you", A, 2)), queue=(Waiter(tag(7, "you"), B),), latest={"me": 0, "you": 7}
    )
    shadow.report(report, {"me"}, 1)
    assert (shadow.view.running, shadow.view.rows, shadow.view.queue) == (A, 3, ((B, 1),))
    assert list(shadow.waiting()) == []
    shadow.remove(tag(0))
    assert shadow.view.rows == 2


def test_a_report_corrects_who_waits() -> None:
    shadow = Shadow("r", WIDTH, ROOM)
    for number in range(2):
        shadow.add(tag(number), A)
    assert shadow.view.rows == 2
    shadow.report(Report(seats=(Seats("you", B, 1),), queue=(Waiter(tag(0), A), Waiter(tag(1), A)),
                         latest={"me": 1, "you": 3}), {"me"}, 1)  # fmt: skip
    assert (shadow.view.running, shadow.view.rows, shadow.view.queue) == (B, 1, ((A, 2),))


def test_a_report_says_nothing_of_calls_that_came_after_it() -> None:
    shadow = Shadow("r", WIDTH, ROOM)
    shadow.add(tag(5), A)
    shadow.report(Report(latest={"me": 4}), {"me"}, 0)
    assert shadow.view.rows == 1


def test_audio_is_surer_than_a_report() -> None:
    shadow = Shadow("r", WIDTH, ROOM)
    shadow.add(tag(0), B)
    shadow.seated(tag(0))
    shadow.report(Report(seats=(Seats("you", A, 2),), queue=(Waiter(tag(0), B),), latest={"me": 0}), {"me"}, 1)
    assert (shadow.view.running, shadow.view.rows) == (B, 1), "the rows of the report have ended since"


def test_unreported_calls_count_once_more_for_every_peer() -> None:
    shadow = Shadow("r", 8, ROOM)
    shadow.report(Report(seats=(Seats("you", A, 1),)), {"me"}, 2)
    shadow.add(tag(0), A)
    shadow.add(tag(1), A)
    assert shadow.view.open, "3 rows, and 2 peers may have sent 2 each"
    shadow.add(tag(2), A)
    assert not shadow.view.open
    assert shadow.view.rows == 4
