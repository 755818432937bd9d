"""The autoscaling policy: what requests, samplers and held requests ask for. On Serve's own types and wrapper."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.autoscaling_policy import _apply_autoscaling_config, replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from voxr_ray.messages import Sampler
from voxr_ray.serve.autoscaling import HELD, IDLE, POLICY, SAMPLER, batches_running, replicas_wanted, stats

NOW_S = 1000.0
TARGET = 12.0
ONE, OTHER = Sampler(2.0, 10), Sampler(3.0, 10)


def report(renders: int = 1, held: int = 0, sampler: Sampler | None = ONE) -> dict[str, float]:
    return stats(renders=renders, held=held, sampler=sampler)


IDLE_REPLICA = report(0, 0, None)


def context(requests: float, reports: list[dict[str, float]], **config: Any) -> AutoscalingContext:
    """What Serve would tell the policy if replicas had reported the same for twenty seconds."""
    deployment = DeploymentID("Replica", "app")
    replicas = [ReplicaID(str(n), deployment) for n in range(len(reports))]
    raw = {
        name: {
            replica: [TimeStampedValue(NOW_S - 20, each[name]), TimeStampedValue(NOW_S - 1, each[name])]
            for replica, each in zip(replicas, reports, strict=True)
        }
        for name in (HELD, IDLE, SAMPLER)
    }
    means = {name: {replica: points[-1].value for replica, points in each.items()} for name, each in raw.items()}
    return AutoscalingContext(
        deployment_id=deployment, deployment_name="Replica", app_name="app", current_num_replicas=len(reports),
        target_num_replicas=len(reports), running_replicas=replicas, total_num_requests=requests,
        total_queued_requests=0.0, aggregated_metrics=means, raw_metrics=raw, capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=8, policy_state={}, last_scale_up_time=None, last_scale_down_time=None,
        current_time=NOW_S,
        config=AutoscalingConfig(min_replicas=0, max_replicas=8, target_ongoing_requests=TARGET, **config),
    )  # fmt: skip


def wanted(requests: float, *reports: dict[str, float]) -> float:
    number, state = replicas_wanted(context(requests, list(reports)))
    assert state == {}
    return number


@pytest.mark.parametrize(("requests", "number"), [(0, 0), (6, 0.5), (12, 1), (13, 13 / 12), (40, 40 / 12)])
def test_requests_ask_for_replicas(requests: float, number: float) -> None:
    assert wanted(requests, IDLE_REPLICA) == pytest.approx(number)


def test_an_idle_deployment_asks_for_none() -> None:
    assert wanted(0, IDLE_REPLICA, IDLE_REPLICA) == 0


def test_held_requests_ask_for_a_replica_that_requests_alone_would_not() -> None:
    assert wanted(4, report(4, held=3)) == 2
    assert wanted(8, report(4, held=3), report(4, held=1, sampler=OTHER)) == 4
    stock, _ = replica_queue_length_autoscaling_policy(context(4, [report(4, held=3)]))
    assert stock < 1, "what Serve's own policy sees of it"


def test_but_not_while_another_one_idles() -> None:
    """Then the router sends them there; it is no matter of numbers."""
    assert wanted(4, report(4, held=3), IDLE_REPLICA) <= 2


def test_replicas_that_run_different_samplers_are_all_needed() -> None:
    assert wanted(2, report(1), report(1, sampler=OTHER)) == 2


def test_replicas_that_run_the_same_sampler_may_become_one() -> None:
    assert wanted(2, report(1), report(1)) == 1


def test_samplers_that_take_turns_need_one_replica() -> None:
    codes = [report(sampler=each)[SAMPLER] for each in (ONE, OTHER, ONE, OTHER)]
    points = [TimeStampedValue(NOW_S - 20 + 5 * n, code) for n, code in enumerate(codes)]
    assert batches_running([points], NOW_S) == pytest.approx(1)
    assert batches_running([[]], NOW_S) == 0
    assert batches_running([[TimeStampedValue(NOW_S, codes[0])]], NOW_S) == 0


def test_a_deployment_without_replicas_is_left_to_serves_cold_start() -> None:
    assert wanted(0) == 0
    policy = _apply_autoscaling_config(replicas_wanted)
    assert policy(context(1, []))[0] == 1


def test_delays_and_bounds_are_serves_own() -> None:
    policy = _apply_autoscaling_config(replicas_wanted)
    busy = context(100, [report(12)], upscale_delay_s=10)
    number, state = policy(busy)
    assert number == 1, "not at once"
    busy.policy_state = state
    ready = context(100, [report(12)], upscale_delay_s=0)
    assert policy(ready)[0] == 9


def test_serve_can_hand_the_policy_to_its_controller() -> None:
    config = AutoscalingConfig(max_replicas=2, policy={"policy_function": POLICY})  # type: ignore[arg-type]
    handed = config.policy.get_policy()
    assert pickle.loads(config.policy.get_serialized_policy_def() or b"")  # noqa: S301
    assert handed(context(24, [report(24)]))[0] == 2
