"""How many replicas are wanted: Serve's policy, and what it cannot see.

Serve counts requests. One replica runs one sampler at a time, so four requests of four samplers are four batches, one
after the other, while Serve sees a replica that is a quarter full. Replicas therefore report which sampler they run
and whether they hold requests of another one, and the policy adds what that takes.

The policy runs in Serve's controller, which is handed this module by value: it keeps no state and imports nothing of
this project when it runs. Delays, bounds and the start from zero are Serve's own, around it.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ray.serve.config import AutoscalingContext

HELD = "held"
"""1 while requests of another sampler than the running one wait, else 0."""
IDLE = "idle"
"""1 while nothing is rendered or waits, else 0."""
SAMPLER = "sampler"
"""A number that stands for the sampler that runs, 0 without one."""

POLICY = "voxr_ray.serve.autoscaling:replicas_wanted"

_WORTH_A_REPLICA = 0.25
"""Share of the time for which requests must be held, beyond what idle replicas could take, before one more is asked
for. Less is the end of a batch: a new replica would come when it is over."""


def stats(*, renders: int, held: int, sampler: object | None) -> dict[str, float]:
    """What a replica reports of itself.

    Args:
        renders: Requests inside.
        held: Those of them that wait for the batch to empty.
        sampler: What the batch runs; equal ones have equal representations.
    """
    code = 0 if sampler is None else zlib.crc32(repr(sampler).encode()) + 1
    return {HELD: float(held > 0), IDLE: float(renders == 0), SAMPLER: float(code)}


def replicas_wanted(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Replicas an application needs: the most of what its requests, its samplers and its held requests take.

    Args:
        context: What Serve knows: requests in all, and the reports of the replicas over the look-back period.

    Returns:
        The number, which Serve rounds up, delays and keeps within its bounds; and no state.
    """
    config: Any = context.config  # typed as optional; Serve always gives both
    now_s: Any = context.current_time
    running = context.current_num_replicas
    if running == 0:
        return context.target_num_replicas, {}
    wanted = context.total_num_requests / config.target_ongoing_requests
    reports = context.aggregated_metrics or {}
    waiting = sum(reports.get(HELD, {}).values())
    idle = sum(reports.get(IDLE, {}).values())
    if waiting - idle > _WORTH_A_REPLICA:
        wanted = max(wanted, running + waiting - idle)
    samplers = (context.raw_metrics or {}).get(SAMPLER, {})
    return max(wanted, batches_running(samplers.values(), now_s)), {}


def batches_running(series: Iterable[Iterable[Any]], now_s: float) -> float:
    """How many batches of different samplers run at the same time, on an average of the reports.

    Replicas that run the same sampler could be one, as far as samplers go, and count as one; requests are counted
    elsewhere. This is what keeps a replica that serves a rare sampler from being taken away as one too many, only to
    be asked for again.

    Args:
        series: The reports of each replica: points with ``timestamp`` and ``value``, oldest first.
        now_s: The time up to which the last report of each holds.
    """
    shares: defaultdict[float, float] = defaultdict(float)
    for points in series:
        points = list(points)
        ends = [point.timestamp for point in points[1:]] + [now_s]
        span_s = now_s - points[0].timestamp if points else 0.0
        for point, end_s in zip(points, ends, strict=True) if span_s > 0 else ():
            if point.value:
                shares[point.value] += (end_s - point.timestamp) / span_s
    return sum(min(1.0, share) for share in shares.values())
