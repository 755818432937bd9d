"""The goals of routing, on small traces in simulated time. ``benchmarks/routing.py`` has the large ones."""

from __future__ import annotations

import pytest

from benchmarks.fleet import CALL_S, FakeReplica, Job, Outcome, Setup, Simulation
from benchmarks.routing import Scenario, changed_mix
from benchmarks.traces import Arrival, fits, make_trace, samplers
from voxr_ray.serve.routing.values import CallTag

WIDTH = 8
TRIP_S = 5 * CALL_S
"""An end, a withdrawal and the second sending, and a little for rounding."""


def run(setup: Setup, trace: list[Arrival], warm_up_s: float = 10.0) -> Outcome:
    return Simulation(setup, trace, warm_up_s=warm_up_s).run()


@pytest.mark.parametrize(("replicas", "count", "load"), [(1, 1, 0.3), (4, 2, 0.3), (4, 3, 0.2), (16, 6, 0.4)])
def test_with_enough_replicas_nobody_is_held_and_none_idles_beside_a_wait(
    replicas: int, count: int, load: float
) -> None:
    """Bursts included, as long as the demand fits."""
    scenario = Scenario(replicas, count, load, seconds=30)
    assert fits(scenario.trace(), replicas, WIDTH, 10.0) <= 1
    outcome = scenario.run("sampler")
    assert outcome.requests > 0
    assert outcome.held == 0
    assert outcome.refused == 0
    assert outcome.longest_idle_waiting_s <= TRIP_S


@pytest.mark.parametrize(("replicas", "count", "load"), [(4, 8, 0.3), (4, 32, 0.2), (16, 32, 0.3)])
def test_with_more_samplers_than_replicas_the_wait_is_at_most_half(replicas: int, count: int, load: float) -> None:
    scenario = Scenario(replicas, count, load, seconds=40)
    ours, default = scenario.run("sampler"), scenario.run("power_of_two")
    assert ours.p95_wait_s <= 0.5 * default.p95_wait_s
    assert ours.refused == 0
    assert ours.longest_idle_waiting_s <= TRIP_S, "samplers that have to share keep nothing free"


def test_a_crowd_is_shared_out_so_that_nobody_waits_twice() -> None:
    """One sampler, twice as many requests at once as there are slots: each waits for one render and no more."""
    trace = [Arrival(0.01 * n, samplers(1)[0], 2.0) for n in range(4 * WIDTH)]
    outcome = run(Setup(2, width=WIDTH), trace, warm_up_s=0.0)
    assert outcome.held == 0
    assert outcome.max_wait_s < 2.1
    assert outcome.utilisation > 0.9


def test_the_default_refuses_beside_room_and_this_does_not() -> None:
    """Bursts larger than one replica takes, on routers that know of each other by reports only."""
    trace = make_trace(seconds=20, rate_hz=1, samplers=samplers(3), bursts_s=4.0, burst=30, seed=3)
    outcomes = {
        policy: run(Setup(4, policy, routers=routers, width=4, max_queue=6), trace, warm_up_s=0.0)
        for policy, routers in (("sampler", 2), ("power_of_two", 1))
    }
    assert outcomes["power_of_two"].refused_beside_room > 0
    assert outcomes["sampler"].refused_beside_room == 0


def test_several_routers_agree_well_enough() -> None:
    one, four = (Scenario(16, 6, 0.4, 24, routers).run("sampler") for routers in (1, 4))
    default = Scenario(16, 6, 0.4, 24).run("power_of_two")
    assert one.held == 0
    assert four.held_share <= 0.05 < default.held_share
    assert four.p95_wait_s <= 0.1 * default.p95_wait_s


def test_a_changed_mix_is_served_without_delay_within_seconds() -> None:
    ours, default = changed_mix("sampler"), changed_mix("power_of_two")
    assert all(wait_s <= 0.5 for wait_s in ours[2:]), "from the fourth second on"
    assert min(default[2:]) > 1.0


def test_a_cached_voice_is_used_when_that_costs_nothing() -> None:
    trace = make_trace(seconds=30, rate_hz=8, samplers=samplers(2), voices=12, seed=2)
    ours = run(Setup(8, width=WIDTH), trace)
    assert ours.held == 0
    assert ours.p50_wait_s == pytest.approx(CALL_S)
    default = run(Setup(8, "power_of_two", width=WIDTH), trace)
    assert ours.encodes < default.encodes


def test_demand_is_counted_by_sampler() -> None:
    a, b = samplers(2)
    trace = [Arrival(0.0, a, 1.0)] * (WIDTH + 1) + [Arrival(0.5, b, 1.0)]
    assert fits(trace, 3, WIDTH, 10.0) == 1.0


def test_fake_replicas_hold_by_the_engines_rule() -> None:
    """The simulation is worth what its replicas are."""
    replica = FakeReplica("r", 2, 4)
    a, b = samplers(2)
    jobs = [Job(Arrival(0.0, kind, 1.0), CallTag("me", n), 0) for n, kind in enumerate([a, b, a, b, b])]
    for job in jobs:
        assert replica.accept(job)
        replica.fill()
    assert [job.tag.number for job in replica.rows.values()] == [0], "the third is held behind the second"
    assert replica.report().held == 4
    assert replica.withdraw(jobs[1])
    assert not replica.withdraw(jobs[0])
    replica.rows.clear()
    assert [job.tag.number for job in replica.fill()] == [2], "the oldest opens, and b keeps its order"
    assert [waiter.tag.number for waiter in replica.report().queue] == [3, 4]
