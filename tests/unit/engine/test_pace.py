"""The estimate behind Retry-After is bounded and follows what was measured."""

from __future__ import annotations

from voxr_ray.engine.pace import Pace


def test_before_anything_was_served_it_is_the_least() -> None:
    assert Pace(16).retry_after_s(4) == 1.0


def test_it_grows_with_service_time_and_queue() -> None:
    pace = Pace(2)
    pace.served(4.0)
    assert pace.retry_after_s(4) == 4.0
    assert pace.retry_after_s(8) == 8.0


def test_it_is_bounded_on_both_sides() -> None:
    slow, fast = Pace(1), Pace(64)
    slow.served(1000.0)
    fast.served(0.001)
    assert slow.retry_after_s(64) == 30.0
    assert fast.retry_after_s(1) == 1.0


def test_it_follows_a_change() -> None:
    pace = Pace(1)
    pace.served(10.0)
    for _ in range(40):
        pace.served(2.0)
    assert 1.9 < pace.retry_after_s(2) < 2.1
