"""One router's decisions over time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voxr_ray.serve.routing.book import Book, Move
from voxr_ray.serve.routing.values import CallTag, Report, SamplerKey, Seats, Waiter, Wish

A, B, C = SamplerKey(1.0, 10), SamplerKey(2.0, 10), SamplerKey(3.0, 10)
WIDTH, ROOM = 2, 4


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tag(number: int) -> CallTag:
    return CallTag("me", number)


def make(replicas: int = 3, clock: Clock | None = None) -> Book:
    book = Book(width=WIDTH, room=ROOM, keep_s=10.0, clock=clock or Clock())
    book.set_replicas(f"r{n}" for n in range(replicas))
    return book


def place(book: Book, number: int, sampler: SamplerKey = A) -> str:
    name, _ = book.place(tag(number), Wish(sampler))
    assert name is not None
    return name


def test_calls_fill_one_replica_after_the_other() -> None:
    book = make()
    homes = [place(book, n) for n in range(6)]
    assert homes[0] == homes[1]
    assert homes[2] == homes[3]
    assert homes[4] == homes[5]
    assert len(set(homes)) == 3


def contended(book: Book) -> tuple[str, str]:
    """Two replicas run A and B, and a call with C waits at one: its name, and the name of the other, which got free."""
    homes = [place(book, 0, A), place(book, 1, B)]
    source = place(book, 2, C)
    free = next(n for n in (0, 1) if homes[n] != source)
    book.close(tag(free))
    return source, homes[free]


def test_a_waiting_call_moves_when_a_replica_idles_and_keeps_its_claim() -> None:
    book = make(2)
    source, target = contended(book)
    assert book.moves([target]) == [Move(tag(2), source, target)]
    assert book.moves() == [], "asked once"
    assert {view.name: view.running for view in book.views()}[target] == C, "its place is kept"
    assert place(book, 2, C) == target
    assert {view.name: view.rows for view in book.views()} == {source: 1, target: 1}


def test_a_call_that_was_seated_meanwhile_stays_and_frees_its_claim() -> None:
    book = make(2)
    source, target = contended(book)
    assert [move.tag for move in book.moves()] == [tag(2)]
    book.seated(tag(2))
    views = {view.name: view for view in book.views()}
    assert views[target].idle
    assert views[source].running == C
    assert tag(2) not in [move.tag for move in book.moves()], "it is not asked again"


def test_a_call_that_cannot_be_asked_back_may_be_asked_later() -> None:
    book = make(2)
    contended(book)
    (move,) = book.moves()
    book.stays(tag(2))
    assert book.moves() == [move]


def test_those_who_wait_move_in_the_order_they_came() -> None:
    book = make(2)
    homes = [place(book, n, A) for n in range(2 * WIDTH)]
    waiting = [place(book, n, A) for n in range(2 * WIDTH, 2 * WIDTH + 3)]
    free = next(each for each in homes if waiting.count(each) == min(map(waiting.count, homes)))
    for n, home in enumerate(homes):
        if home == free:
            book.close(tag(n))
    moved = [move.tag.number for move in book.moves()]
    expected = [2 * WIDTH + n for n, home in enumerate(waiting) if home != free]
    assert moved
    assert moved == expected[: len(moved)]


def test_a_sampler_counts_as_in_use_for_a_while() -> None:
    clock = Clock()
    book = make(2, clock)
    place(book, 0, B)
    book.close(tag(0))
    homes = [place(book, n, A) for n in range(1, 4)]
    assert len(set(homes)) == 1, "the third waits a moment rather than take the replica that is kept for B"
    clock.now_s = 11.0
    assert book.moves() != [], "B is not in use any more"


def test_the_places_of_a_full_fleet_are_known() -> None:
    book = make(2)
    for n in range(2 * ROOM):
        assert book.place(tag(n), Wish(A))[0] is not None
    assert all(view.full for view in book.views())
    assert book.place(tag(99), Wish(A))[1] is False, "no other has room"


def test_a_refusal_leads_elsewhere() -> None:
    book = make(2)
    first = place(book, 0)
    name, another = book.place(tag(0), Wish(A), {first})
    assert name != first
    assert not another
    assert sum(view.rows for view in book.views()) == 1, "it is counted once"


def test_serve_may_send_a_call_elsewhere() -> None:
    book = make(2)
    first = place(book, 0)
    (second,) = {"r0", "r1"} - {first}
    book.placed_at(tag(0), second)
    assert {view.name: view.rows for view in book.views()} == {first: 0, second: 1}
    assert book.close(tag(0)) == second


def test_replicas_come_and_go() -> None:
    book = make(1)
    place(book, 0)
    book.set_replicas(["r7"])
    assert place(book, 1) == "r7"
    book.drop_replica("r7")
    assert book.place(tag(2), Wish(A)) == (None, False)
    assert book.close(tag(0)) == "r0"
    book.report("r0", Report())
    assert book.moves() == []


def test_the_load_of_other_routers_counts() -> None:
    book = make(2)
    mine = place(book, 0, A)
    (other,) = {"r0", "r1"} - {mine}
    book.report(other, Report(seats=(Seats("you", B, 2),), queue=(Waiter(CallTag("you", 3), B),)))
    assert place(book, 1, A) == mine
    assert place(book, 2, B) == other, "there it does not hold anybody up"


@given(st.lists(st.tuples(st.sampled_from("pcrsm"), st.integers(0, 30), st.sampled_from([A, B, C])), max_size=80))
def test_nothing_is_left_when_all_calls_are_closed(events: list[tuple[str, int, SamplerKey]]) -> None:
    """Whatever happens in whatever order, counts come back to zero."""
    book = make(3)
    for verb, number, sampler in events:
        if verb == "p":
            book.place(tag(number), Wish(sampler))
        elif verb == "c":
            book.close(tag(number))
        elif verb == "s":
            book.seated(tag(number))
        elif verb == "r":
            queue = tuple(Waiter(tag(n), sampler) for n in range(number, number + 3))
            book.report(f"r{number % 3}", Report(queue=queue, latest={"me": number}))
        else:
            for move in book.moves():
                book.place(move.tag, Wish(sampler))
    for number in range(31):
        book.close(tag(number))
    for n in range(3):
        book.report(f"r{n}", Report(latest={"me": 31}))
    assert book.calls == 0
    assert all(view.idle for view in book.views())
    assert book.moves() == []
