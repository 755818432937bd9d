"""A capture for machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable

from voxr_ray.voxcpm2.graphs import Capture, GraphKind, Region


class Kept:
    """A capture that keeps the region and repeats it; fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.captured = 0
        self.replayed = 0

    def __call__(self, region: Region) -> Callable[[], None]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            region()

        return replay


def captures(capture: Capture) -> dict[GraphKind, Capture]:
    """One capture for every kind."""
    return dict.fromkeys(GraphKind, capture)
