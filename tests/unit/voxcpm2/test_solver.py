"""The Euler schedule, and guidance of the whole step."""

from __future__ import annotations

import math

import pytest
import torch

from voxr_ray.voxcpm2.solver import euler_steps


@pytest.mark.parametrize("count", [2, 6, 10, 25, 60, 100])
def test_steps_run_from_the_first_sway_to_zero(count: int) -> None:
    steps = euler_steps(count)
    still = max(1, int((count + 1) * 0.04))
    assert len(steps) == count - still
    linear = [1 - index / count for index in range(count + 1)]
    swayed = [t + math.cos(math.pi / 2 * t) - 1 + t for t in linear]
    times = [step.time for step in steps]
    assert times == pytest.approx(swayed[still:-1], abs=1e-5)
    assert sum(step.delta for step in steps) == pytest.approx(swayed[still], abs=1e-5)
    assert all(step.delta > 0 for step in steps)


def test_one_step_evaluates_nothing() -> None:
    assert euler_steps(1) == []


def test_times_are_float32_sums() -> None:
    """A rounded time is another time: the sums are made in float32, in upstream's order."""
    for step in euler_steps(10):
        assert step.time == float(torch.tensor(step.time, dtype=torch.float32))
        assert step.delta == float(torch.tensor(step.delta, dtype=torch.float32))
