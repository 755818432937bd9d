"""Which token of a text is spoken in which frame: the cheapest monotonic path between phone labels and tokens.

Left to itself, a small network needs most of its training to find out that speech walks along the text. The teacher's
phone times say so at once: the path found here tells one layer's attention where to look.
"""

from __future__ import annotations

import numpy as np

from training import phones

JUMP = 5
"""Tokens that a path may advance in one frame: short phones have none of their own, spaces hardly any."""

SKIPPED = 0.2
WRONG_PHONE, LETTER, SPACE, SPACE_AT_PAUSE, END = 1.0, 0.4, 0.8, 0.1, 2.0
"""Costs of a frame on a token that does not say its label."""

_CLASSES = {symbol: phones.INDEX[phone] for phone, symbol in phones.SYMBOLS.items()}
_PAUSE = phones.INDEX[phones.PAUSE]


def costs(symbols: str, labels: np.ndarray) -> np.ndarray:
    """Cost ``(frames, symbols + 1)`` of each label on each symbol, and on the end behind them."""
    table = np.empty((len(labels), len(symbols) + 1), dtype=np.float32)
    pause = labels == _PAUSE
    for index, symbol in enumerate(symbols):
        if (phone := _CLASSES.get(symbol)) is not None:
            table[:, index] = np.where(labels == phone, 0.0, WRONG_PHONE)
        elif symbol.isalpha():
            table[:, index] = np.where(pause, WRONG_PHONE, LETTER)
        else:
            table[:, index] = np.where(pause, SPACE_AT_PAUSE, SPACE)
    table[:, -1] = np.where(pause, 0.0, END)
    return table


def align(symbols: str, labels: np.ndarray) -> np.ndarray:
    """The symbol of each frame, ``len(symbols)`` for what follows the text.

    Args:
        symbols: What :func:`training.lexicon.pronounce` gives, with the leading space.
        labels: Phone classes ``(frames,)``.
    """
    table = costs(symbols, labels)
    count = table.shape[1]
    came = np.zeros(table.shape, dtype=np.int8)
    best = np.where(np.arange(count) < JUMP, SKIPPED * np.arange(count), np.inf) + table[0]
    for frame in range(1, len(labels)):
        choices = np.full((JUMP + 1, count), np.inf, dtype=np.float32)
        choices[0] = best
        for jump in range(1, min(JUMP, count - 1) + 1):
            choices[jump, jump:] = best[: count - jump] + SKIPPED * (jump - 1)
        came[frame] = choices.argmin(axis=0)
        best = choices.min(axis=0) + table[frame]
    path = np.empty(len(labels), dtype=np.int64)
    at = int(best.argmin())
    for frame in range(len(labels) - 1, -1, -1):
        path[frame] = at
        at -= int(came[frame, at])
    return path
