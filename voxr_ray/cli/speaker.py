"""What speaks for ``say``: the parts of a text in turn, in one voice. Here, what both kinds have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Fields: TypeAlias = dict[str, Any]
"""A speech request as ``POST /v1/audio/speech`` takes it."""


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """Samples that follow those before.

    Attributes:
        samples: float32 ``(samples,)``.
        rate_hz: Their rate.
        seed: Seed of the take they belong to, if that is known.
    """

    samples: np.ndarray
    rate_hz: int
    seed: int | None


class Speaker(Protocol):
    """Speaks one text. Runs on an event loop."""

    async def begin(self, fields: Fields) -> list[str]:
        """Check a request.

        Returns:
            The parts it is spoken in.
        """

    def speak(self, part: str, *, live: bool) -> AsyncGenerator[Sound, None]:
        """Speak the next part.

        Args:
            part: The one whose turn it is.
            live: Give its audio while it is made; otherwise when it is complete, bad takes replaced.
        """

    async def close(self) -> None:
        """Let go of what it holds."""
