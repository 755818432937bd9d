"""The gathering window: the one moment a job waits for company. Owner thread."""

from __future__ import annotations

from enum import Enum


class _Phase(Enum):
    IDLE = "nobody sits and nobody waits"
    GATHERING = "an idle engine met its first job and waits for others"
    RUNNING = "the batch has opened; later ones open it again without waiting"


class GatheringWindow:
    """Delays the first opening of an idle engine's batch, so that jobs submitted together start together.

    It applies once per idle stretch. A joiner of a running batch waits for the step in progress only, and a job
    that was held until the batch emptied has waited enough.

    Args:
        length_s: How long to wait, from the first job's submission.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._phase = _Phase.IDLE
        self._closes_s = 0.0

    def went_idle(self) -> None:
        """Note that nobody sits and nobody waits."""
        self._phase = _Phase.IDLE

    def remaining_s(self, *, first_submitted_s: float, now_s: float) -> float:
        """Seconds until an empty batch may open; 0 for at once.

        Args:
            first_submitted_s: When the oldest waiting job was submitted.
            now_s: The time now.
        """
        if self._phase is _Phase.IDLE:
            self._phase = _Phase.GATHERING
            self._closes_s = first_submitted_s + self._length_s
        return max(0.0, self._closes_s - now_s) if self._phase is _Phase.GATHERING else 0.0

    def opened(self) -> None:
        """Note that the batch has opened, whatever is left of the window."""
        self._phase = _Phase.RUNNING
