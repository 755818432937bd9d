"""Rule 6: a step's width is the occupied prefix, rounded up to one of a short list."""

from __future__ import annotations

import pytest

from voxr_ray.engine.widths import stepped_width, stepped_widths


@pytest.mark.parametrize(
    ("max_batch", "widths"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (4, (1, 2, 3, 4)),
        (5, (1, 2, 3, 4, 5)),
        (16, (1, 2, 3, 4, 6, 8, 12, 16)),
        (20, (1, 2, 3, 4, 6, 8, 12, 16, 20)),
        (64, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)),
    ],
)
def test_the_list(max_batch: int, widths: tuple[int, ...]) -> None:
    assert stepped_widths(max_batch) == widths


@pytest.mark.parametrize("max_batch", range(1, 130))
def test_every_prefix_is_covered_by_at_most_half_as_much_again(max_batch: int) -> None:
    widths = stepped_widths(max_batch)
    assert list(widths) == sorted(set(widths))
    for prefix in range(1, max_batch + 1):
        width = stepped_width(prefix, widths)
        assert prefix <= width <= max_batch
        assert width <= prefix * 1.5


def test_the_list_is_short() -> None:
    assert len(stepped_widths(1024)) <= 21
