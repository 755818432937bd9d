"""The simulated listener."""

from __future__ import annotations

import math

from voxr_ray.cli.listener import Player
from voxr_ray.cli.tables import median, quantile, table


def test_audio_that_comes_in_time_never_stops() -> None:
    player = Player()
    for index in range(5):
        player.take(0.2, 10.0 + 0.1 * index)
    assert player.first_s == 10.0
    assert (player.underruns, player.silence_s) == (0, 0.0)
    assert math.isclose(player.audio_s, 1.0)


def test_a_late_piece_is_one_gap_of_its_length() -> None:
    player = Player()
    player.take(0.2, 1.0)
    player.take(0.2, 1.5)  # silent from 1.2 on
    player.take(0.2, 1.6)
    assert player.underruns == 1
    assert math.isclose(player.silence_s, 0.3)


def test_nothing_is_no_first_audio() -> None:
    player = Player()
    player.take(0.0, 1.0)
    assert player.first_s is None


def test_quantiles_and_tables() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile(range(100), 0.95) == 95
    assert math.isnan(quantile([], 0.5))
    assert median([1.0, 2.0, 4.0]) == 2.0
    lines = table([{"a": 1234, "b": 0.123456}, {"a": 2}]).splitlines()
    assert lines == ["| a | b |", "| --- | --- |", "| 1,234 | 0.123 |", "| 2 | – |"]
