"""What routing by sampler does, in simulated time, beside Serve's default.

    python -m benchmarks.routing
    python -m benchmarks.routing --decisions

The first prints the tables of docs/routing.md: the same traces under both policies, then several routers, then a mix
that changes. The second measures the time of a decision, which does depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fleet import Outcome, Setup, Simulation
from benchmarks.traces import Arrival, fits, make_trace, samplers
from voxr_ray.serve.routing.book import Book
from voxr_ray.serve.routing.values import CallTag, Report, Seats, Wish

WIDTH = 8
RENDER_S = (1.0, 5.0)
WARM_UP_S = 15.0
BURST = WIDTH // 2
BURSTS_SHARE = 0.2


@dataclass(frozen=True)
class Scenario:
    """A trace for a fleet. ``load`` is the share of all slots that it would fill if nobody ever waited."""

    replicas: int
    samplers: int
    load: float
    seconds: float = 60.0
    routers: int = 1

    def trace(self, seed: int = 1) -> list[Arrival]:
        """Requests with popularity 1/rank and a fifth of them in bursts of half a batch."""
        rate_hz = self.load * self.replicas * WIDTH / statistics.mean(RENDER_S)
        return make_trace(
            seconds=self.seconds,
            rate_hz=rate_hz * (1 - BURSTS_SHARE),
            samplers=samplers(self.samplers),
            bursts_s=BURST / (rate_hz * BURSTS_SHARE),
            burst=BURST,
            render_s=RENDER_S,
            voices=4 * self.replicas,
            seed=seed,
        )

    def run(self, policy: str, seed: int = 1) -> Outcome:
        """Run it."""
        setup = Setup(self.replicas, policy, routers=self.routers, width=WIDTH)
        return Simulation(setup, self.trace(seed), warm_up_s=WARM_UP_S, seed=seed).run()


SCENARIOS = [
    Scenario(1, 1, 0.3, 120),
    Scenario(1, 4, 0.2, 120),
    Scenario(4, 2, 0.3, 120),
    Scenario(4, 2, 0.5, 120),
    Scenario(4, 4, 0.1, 120),
    Scenario(4, 4, 0.5, 120),
    Scenario(4, 8, 0.3, 120),
    Scenario(4, 32, 0.2, 120),
    Scenario(16, 1, 0.7),
    Scenario(16, 8, 0.4),
    Scenario(16, 8, 0.6),
    Scenario(16, 16, 0.2),
    Scenario(16, 16, 0.5),
    Scenario(16, 32, 0.4),
    Scenario(100, 8, 0.7, 35),
    Scenario(100, 32, 0.6, 35),
]

SEVERAL = [
    Scenario(replicas, count, load, 40, routers)
    for replicas, count, load in ((4, 2, 0.5), (16, 8, 0.6), (16, 32, 0.4))
    for routers in (1, 2, 4)
]


def rows(scenarios: list[Scenario], policies: tuple[str, ...]) -> Iterator[tuple[Scenario, str, Outcome]]:
    """Run scenarios."""
    for scenario in scenarios:
        for policy in policies:
            yield scenario, policy, scenario.run(policy)


def print_policies() -> list[dict[str, object]]:
    """Both policies on the same traces."""
    columns = ("replicas", "samplers", "load", "demand", "policy", "held", "p50 wait, s", "p95 wait, s", "longest, s",
               "refused beside room", "slots used", "idle beside a wait", "encodes", "moved")  # fmt: skip
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    found: list[dict[str, object]] = []
    for scenario, policy, o in rows(SCENARIOS, ("sampler", "power_of_two")):
        demand = fits(scenario.trace(), scenario.replicas, WIDTH, 10.0)
        print(
            f"| {scenario.replicas} | {scenario.samplers} | {scenario.load:.0%} | {demand:.2f} "
            f"| {policy.replace('_', ' ')} | {o.held_share:.1%} | {o.p50_wait_s:.2f} | {o.p95_wait_s:.2f} "
            f"| {o.max_wait_s:.1f} | {o.refused_beside_room} | {o.utilisation:.0%} | {o.idle_waiting:.2%} "
            f"| {o.encodes:.0%} | {o.moved / max(1, o.requests):.1%} |",
            flush=True,
        )
        found.append({"scenario": asdict(scenario), "policy": policy, "demand": demand} | asdict(o))
    return found


def print_routers() -> list[dict[str, object]]:
    """Several routers that never talk."""
    print("\n| replicas | samplers | load | routers | held | p95 wait, s | idle beside a wait | moved |")
    print("|" + "---|" * 8)
    found: list[dict[str, object]] = []
    for scenario, _, o in rows(SEVERAL, ("sampler",)):
        print(
            f"| {scenario.replicas} | {scenario.samplers} | {scenario.load:.0%} | {scenario.routers} "
            f"| {o.held_share:.1%} | {o.p95_wait_s:.2f} | {o.idle_waiting:.2%} | {o.moved / max(1, o.requests):.1%} |",
            flush=True,
        )
        found.append({"scenario": asdict(scenario)} | asdict(o))
    return found


def changed_mix(policy: str, *, seed: int = 1) -> list[float]:
    """The popularity of eight samplers turns round on 16 replicas: p95 wait of each 2 s from the change on."""
    kinds = samplers(8)
    rate_hz = 0.6 * 16 * WIDTH / statistics.mean(RENDER_S)
    change_s, seconds = 20.0, 16
    trace = make_trace(seconds=change_s, rate_hz=rate_hz, samplers=kinds, render_s=RENDER_S, seed=seed)
    trace += make_trace(
        seconds=seconds, rate_hz=rate_hz, samplers=kinds[::-1], render_s=RENDER_S, seed=seed + 1, start_s=change_s
    )
    simulation = Simulation(Setup(16, policy, width=WIDTH), trace, warm_up_s=change_s, seed=seed)
    simulation.run()
    found = []
    for start in range(0, seconds, 2):
        waits = sorted(wait_s for at_s, wait_s in simulation.waits() if change_s + start <= at_s < change_s + start + 2)
        found.append(waits[int(0.95 * (len(waits) - 1))])
    return found


def decision_us(replicas: int, count: int = 300) -> tuple[float, float, float]:
    """Microseconds of processor time in a half-full fleet: a decision, median and p95; taking in a report, median."""
    dice = random.Random(1)
    book = Book(width=16, room=80, keep_s=10.0, clock=time.monotonic)
    book.set_replicas(f"r{n:04d}" for n in range(replicas))
    kinds = samplers(32)
    for number in range(replicas * 8):
        book.place(CallTag("me", number), Wish(dice.choice(kinds)))
    times = []
    for number in range(count):
        tag, wish = CallTag("me", replicas * 8 + number), Wish(dice.choice(kinds))
        started_ns = time.thread_time_ns()
        book.place(tag, wish)
        times.append((time.thread_time_ns() - started_ns) / 1000)
        book.close(CallTag("me", number))
    reports = []
    for number in range(count):
        name = f"r{number % replicas:04d}"
        seats = (Seats("me", kinds[number % 32], 4), Seats("you", kinds[number % 32], 4))
        report = Report(seats=seats, latest={"me": 10**9, "you": number})
        started_ns = time.thread_time_ns()
        book.report(name, report)
        book.moves([name])
        reports.append((time.thread_time_ns() - started_ns) / 1000)
    times.sort()
    return statistics.median(times), times[int(0.95 * (len(times) - 1))], statistics.median(reports)


def main() -> None:
    parser = argparse.ArgumentParser(description="Routing by sampler and by the default, in simulated time.")
    parser.add_argument("--decisions", action="store_true", help="measure the time of a decision instead")
    parser.add_argument("--json", type=Path, help="also write the tables here")
    arguments = parser.parse_args()
    if arguments.decisions:
        print("| replicas | a decision, µs | p95, µs | taking in a report, µs |\n|---|---|---|---|")
        for replicas in (1, 4, 16, 100, 1000):
            print("| {} | {:.0f} | {:.0f} | {:.0f} |".format(replicas, *decision_us(replicas)), flush=True)
        return
    tables = {"policies": print_policies(), "routers": print_routers()}
    print("\n| policy | p95 wait, s, in the 2 s from 0, 2, 4, … s after the change |\n|---|---|")
    for policy in ("sampler", "power_of_two"):
        print(f"| {policy.replace('_', ' ')} | " + ", ".join(f"{wait_s:.2f}" for wait_s in changed_mix(policy)) + " |")
    if arguments.json:
        arguments.json.write_text(json.dumps(tables, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
