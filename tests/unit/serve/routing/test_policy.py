"""What the best place for a request is, for any state of the replicas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voxr_ray.serve.routing.policy import Fleet, View, Weights, best, rendezvous
from voxr_ray.serve.routing.values import SamplerKey, Wish

A, B, C = SamplerKey(1.0, 10), SamplerKey(2.0, 10), SamplerKey(2.0, 6)
WIDTH, ROOM = 4, 8
WEIGHTS = Weights()


def view(name: str, running: SamplerKey | None = None, rows: int = 0, **more: object) -> View:
    return View.of(name, width=WIDTH, room=ROOM, running=running, rows=rows, **more)  # type: ignore[arg-type]


def choose(views: list[View], sampler: SamplerKey = A, *, active: tuple[SamplerKey, ...] = (), **wish: object) -> str:
    chosen = best(Fleet.of(views, active, sampler), Wish(sampler, **wish), WEIGHTS)  # type: ignore[arg-type]
    assert chosen is not None
    return chosen.name


@st.composite
def views(draw: st.DrawFn) -> list[View]:
    """Replicas in any state an engine can be in."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        rows = draw(st.integers(0, WIDTH))
        running = draw(st.sampled_from([A, B, C])) if rows else None
        groups = draw(st.lists(st.sampled_from([A, B, C]), unique=True)) if rows else []
        if rows < WIDTH and groups and groups[0] == running:
            groups = groups[1:]  # it would have been seated
        counts = [draw(st.integers(1, 2)) for _ in groups]
        voices = draw(st.frozensets(st.sampled_from(["x", "y"])))
        found.append(view(f"r{number}", running, rows, queue=tuple(zip(groups, counts, strict=True)), voices=voices))
    return found


SAMPLERS = st.sampled_from([A, B, C])
ACTIVE = st.lists(SAMPLERS, unique=True).map(tuple)
VOICES = st.frozensets(st.sampled_from(["x", "y"]))


@given(views(), SAMPLERS, ACTIVE, VOICES)
def test_a_free_slot_of_the_sampler_beats_everything(
    replicas: list[View], sampler: SamplerKey, active: tuple[SamplerKey, ...], voices: frozenset[str]
) -> None:
    chosen = next(each for each in replicas if each.name == choose(replicas, sampler, active=active, voices=voices))
    joins = [each for each in replicas if each.running == sampler and each.rows < WIDTH and not each.queue]
    if joins:
        assert chosen in joins
    elif any(each.idle for each in replicas) and not any(each.running == sampler for each in replicas):
        assert chosen.idle, "a sampler that runs nowhere is entitled to an idle replica"
    elif not all(each.full for each in replicas):
        assert not chosen.full


@given(views(), SAMPLERS, ACTIVE)
def test_no_request_is_held_where_it_could_run_at_once(
    replicas: list[View], sampler: SamplerKey, active: tuple[SamplerKey, ...]
) -> None:
    """It may wait for its own sampler's slots, never behind another one's while a replica idles."""
    chosen = next(each for each in replicas if each.name == choose(replicas, sampler, active=active))
    held = not chosen.idle and (chosen.running != sampler or any(each != sampler for each, _ in chosen.queue))
    assert not (held and any(each.idle for each in replicas))


@given(views(), SAMPLERS, ACTIVE, VOICES)
def test_a_cached_voice_costs_nothing(
    replicas: list[View], sampler: SamplerKey, active: tuple[SamplerKey, ...], voices: frozenset[str]
) -> None:
    """With and without the caches the wait is the same."""
    fleet = Fleet.of(replicas, active, sampler)
    with_voice = best(fleet, Wish(sampler, voices), WEIGHTS)
    without = best(fleet, Wish(sampler), WEIGHTS)
    assert with_voice is not None
    assert without is not None
    assert fleet.wait(with_voice, sampler, WEIGHTS) == fleet.wait(without, sampler, WEIGHTS)
    assert fleet.serves(with_voice, sampler) == fleet.serves(without, sampler)


@given(views(), SAMPLERS, ACTIVE, st.randoms(use_true_random=False))
def test_routers_with_the_same_knowledge_agree(
    replicas: list[View], sampler: SamplerKey, active: tuple[SamplerKey, ...], dice: object
) -> None:
    shuffled = list(replicas)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose(replicas, sampler, active=active) == choose(shuffled, sampler, active=active)


@given(views(), SAMPLERS)
def test_what_refused_is_not_asked_again_while_another_is_left(replicas: list[View], sampler: SamplerKey) -> None:
    fleet = Fleet.of(replicas, (), sampler)
    tried: list[str] = []
    for _ in replicas:
        chosen = best(fleet, Wish(sampler), WEIGHTS, frozenset(tried))
        assert chosen is not None
        tried.append(chosen.name)
    assert sorted(tried) == sorted(each.name for each in replicas)


def test_without_replicas_there_is_no_choice() -> None:
    assert best(Fleet.of([], (), A), Wish(A), WEIGHTS) is None


def test_the_fullest_is_filled_up_so_that_others_drain() -> None:
    assert choose([view("r1", A, 1), view("r2", A, 3), view("r3", A, 4)]) == "r2"


def test_a_cached_voice_decides_between_equals() -> None:
    idle = [view("r1"), view("r2", voices=frozenset({"v"})), view("r3")]
    assert choose(idle, voices=frozenset({"v"})) == "r2"
    assert choose([*idle, view("r4", A, 1)], voices=frozenset({"v"})) == "r4", "another replica is not opened for it"


def test_an_idle_replica_is_kept_for_a_sampler_that_was_here_a_moment_ago() -> None:
    full = view("r1", A, WIDTH)
    assert choose([full, view("r2")], A) == "r2"
    assert choose([full, view("r2")], A, active=(B,)) == "r1", "it waits for a slot a moment, and B is not held"
    assert choose([full, view("r2")], B, active=(A, B)) == "r2"
    assert choose([full, view("r2"), view("r3")], A, active=(B,)) in ("r2", "r3"), "one is left for B"
    assert choose([full, view("r2")], A, active=(B, C)) == "r2", "more samplers than replicas have to share"


def test_it_is_lent_when_the_wait_grows_long() -> None:
    busy = view("r1", A, WIDTH, queue=((A, WIDTH // 2),))
    assert choose([busy, view("r2")], A, active=(B,)) == "r2"


def test_rare_samplers_share_a_queue_and_leave_the_others_alone() -> None:
    """Being the first that is held would stop the only replica of B."""
    mixed = view("r1", A, 2, queue=((C, 1),))
    assert choose([mixed, view("r2", B, 2)], C, active=(A, B)) == "r1"


def test_a_guess_about_other_routers_only_keeps_from_joining() -> None:
    crowded = View.of("r1", width=WIDTH, room=ROOM, running=A, rows=2, unseen=2)
    assert choose([crowded, view("r2", A, 1)]) == "r2"
    assert not crowded.full
    assert not View.of("r1", width=WIDTH, room=ROOM, unseen=9).full


def test_every_process_hashes_alike() -> None:
    assert rendezvous(B, "r1").hex() == "521a7934972c39fb", (
        "a constant: hashes of text in Python differ between processes"
    )


def test_samplers_are_spread_over_idle_replicas() -> None:
    """Each by its own order: routers that know nothing of each other rarely choose the same one."""
    idle = [view(f"r{n}") for n in range(20)]
    homes = {choose(idle, SamplerKey(1.0 + n / 8, 10)) for n in range(20)}
    assert len(homes) >= 10
