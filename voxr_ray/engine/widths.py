"""The widths a step may have. Pure; any thread."""

from __future__ import annotations

from bisect import bisect_left


def stepped_widths(max_batch: int) -> tuple[int, ...]:
    """The short list of widths that steps take, ascending, ``max_batch`` last.

    A width is the shape key of a captured graph, so there must be few of them; they grow by at most a half from one
    to the next but for the first, so that a step never computes many more lanes than are seated.
    """
    widths = [1]
    power = 2
    while power < max_batch:
        widths += [width for width in (power, power + power // 2) if width < max_batch]
        power *= 2
    return (*widths, max_batch) if max_batch > 1 else (1,)


def stepped_width(prefix: int, widths: tuple[int, ...]) -> int:
    """The least listed width that covers a prefix of ``prefix`` slots."""
    return widths[bisect_left(widths, prefix)]
