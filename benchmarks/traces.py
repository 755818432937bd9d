"""Traces of requests for the simulation of a fleet, and what they ask of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from voxr_ray.serve.routing.values import SamplerKey


@dataclass(frozen=True)
class Arrival:
    """A request of a trace."""

    at_s: float
    sampler: SamplerKey
    render_s: float
    voice: str = ""


def samplers(count: int) -> list[SamplerKey]:
    """Different samplers."""
    return [SamplerKey(1.0 + 0.25 * (number % 16), 6 + number // 16) for number in range(count)]


def make_trace(
    *,
    seconds: float,
    rate_hz: float,
    samplers: list[SamplerKey],
    skew: float = 1.0,
    bursts_s: float = 0.0,
    burst: int = 0,
    render_s: tuple[float, float] = (1.0, 5.0),
    voices: int = 0,
    seed: int = 0,
    start_s: float = 0.0,
) -> list[Arrival]:
    """Requests at random times, the samplers' popularity falling as a power of their rank.

    Args:
        seconds: How long.
        rate_hz: Requests a second, bursts not counted.
        samplers: Most popular first.
        skew: Exponent; 0 makes all equally popular.
        bursts_s: Mean time between two bursts; 0 for none.
        burst: Requests of a burst, all of one sampler.
        render_s: Shortest and longest render.
        voices: Number of different voices; 0 for none.
        seed: Of the dice.
        start_s: When it starts.
    """
    dice = random.Random(seed)
    weights = [1.0 / rank**skew for rank in range(1, len(samplers) + 1)]

    def arrival(at_s: float, sampler: SamplerKey) -> Arrival:
        return Arrival(at_s, sampler, dice.uniform(*render_s), f"voice{dice.randrange(voices)}" if voices else "")

    found: list[Arrival] = []
    at_s = 0.0
    while (at_s := at_s + dice.expovariate(rate_hz)) < seconds:
        found.append(arrival(start_s + at_s, dice.choices(samplers, weights)[0]))
    at_s = 0.0
    while bursts_s and (at_s := at_s + dice.expovariate(1 / bursts_s)) < seconds:
        chosen = dice.choices(samplers, weights)[0]
        found.extend(arrival(start_s + at_s, chosen) for _ in range(burst))
    return sorted(found, key=lambda each: each.at_s)


def fits(trace: list[Arrival], replicas: int, width: int, keep_s: float) -> float:
    """Replicas that a trace needs at its worst moment so that nobody ever waits, over those there are.

    A sampler needs one for every ``width`` requests under way at a time, and one as long as it is in use.
    """
    events: list[tuple[float, int, object]] = []
    for each in trace:
        events += [(each.at_s, 1, each.sampler), (each.at_s + each.render_s, -1, each.sampler)]
    rows: dict[object, int] = {}
    latest: dict[object, float] = {}
    worst = 0
    for at_s, change, sampler in sorted(events, key=lambda event: event[0]):
        rows[sampler] = rows.get(sampler, 0) + change
        if change > 0:
            latest[sampler] = at_s
        needed = sum(max(-(-rows[each] // width), at_s - latest[each] <= keep_s) for each in rows if each in latest)
        worst = max(worst, needed)
    return worst / replicas
