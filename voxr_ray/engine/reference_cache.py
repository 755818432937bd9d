"""Encoded recordings, kept by content. Owner thread."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from voxr_ray.engine.model import Padding

Key: TypeAlias = tuple[str, Padding]
"""Digest of the samples, and the padding: one recording has other features as a prompt than as a reference."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache did so far, and what it holds."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0
    size_bytes: int = 0


class ReferenceCache:
    """Least-recently-used features within a budget of bytes.

    Args:
        budget_bytes: Most bytes held. What is larger by itself is not stored, rather than emptying the cache for
            one recording that would go next.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._entries: OrderedDict[Key, np.ndarray] = OrderedDict()
        self._keys: frozenset[Key] = frozenset()
        self._size_bytes = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0

    def get(self, key: Key) -> np.ndarray | None:
        """The features under ``key``, now the most recently used; counted as a hit or a miss."""
        features = self.peek(key)
        if features is None:
            self._misses += 1
        else:
            self._hits += 1
            self._entries.move_to_end(key)
        return features

    def peek(self, key: Key) -> np.ndarray | None:
        """The features under ``key``, without a trace of the question."""
        return self._entries.get(key)

    def put(self, key: Key, features: np.ndarray) -> None:
        """Store features, at the expense of the least recently used."""
        if features.nbytes > self._budget_bytes:
            return
        replaced = self._entries.pop(key, None)
        self._size_bytes -= 0 if replaced is None else replaced.nbytes
        while self._size_bytes + features.nbytes > self._budget_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._size_bytes -= oldest.nbytes
            self._evictions += 1
        self._entries[key] = features
        self._size_bytes += features.nbytes
        self._keys = frozenset(self._entries)

    @property
    def keys(self) -> frozenset[Key]:
        """What is stored now. Made when it changes, so that reading it every cycle costs nothing."""
        return self._keys

    @property
    def stats(self) -> CacheStats:
        """What it did and holds."""
        return CacheStats(self._hits, self._misses, self._evictions, len(self._entries), self._size_bytes)
