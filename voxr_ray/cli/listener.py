"""A listener who starts to play with the first audio: what a stream sounds like, told from when its pieces came."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Player:
    """Plays what has arrived, and waits when there is nothing.

    Attributes:
        first_s: When the first audio came; ``None`` before.
        audio_s: Seconds of audio so far.
        underruns: How often the player had to wait after it had begun.
        silence_s: How long it waited in all.
    """

    first_s: float | None = None
    audio_s: float = 0.0
    underruns: int = 0
    silence_s: float = 0.0
    _until_s: float = 0.0

    def take(self, audio_s: float, now_s: float) -> None:
        """A piece of ``audio_s`` seconds arrives."""
        if audio_s <= 0.0:
            return
        if self.first_s is None:
            self.first_s = self._until_s = now_s
        elif now_s > self._until_s:
            self.underruns += 1
            self.silence_s += now_s - self._until_s
            self._until_s = now_s
        self._until_s += audio_s
        self.audio_s += audio_s
