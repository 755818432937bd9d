"""The reference cache: bounded in bytes, least recently used goes first, keyed by content and padding."""

from __future__ import annotations

import numpy as np

from voxr_ray.engine.model import Padding
from voxr_ray.engine.reference_cache import CacheStats, ReferenceCache

LEFT, RIGHT = Padding.LEFT, Padding.RIGHT


def features(floats: int) -> np.ndarray:
    return np.zeros(floats, dtype=np.float32)


def test_what_was_put_is_found_under_its_key_only() -> None:
    cache = ReferenceCache(1000)
    one = features(3)
    cache.put(("a", RIGHT), one)
    assert cache.get(("a", RIGHT)) is one
    assert cache.get(("a", LEFT)) is None
    assert cache.get(("b", RIGHT)) is None
    assert cache.stats == CacheStats(hits=1, misses=2, evictions=0, entries=1, size_bytes=12)
    assert cache.keys == {("a", RIGHT)}


def test_the_least_recently_used_goes_first() -> None:
    cache = ReferenceCache(24)
    cache.put(("a", RIGHT), features(3))
    cache.put(("b", RIGHT), features(3))
    cache.get(("a", RIGHT))
    cache.put(("c", RIGHT), features(3))
    assert cache.keys == {("a", RIGHT), ("c", RIGHT)}
    assert cache.stats.evictions == 1
    assert cache.stats.size_bytes == 24


def test_peeking_leaves_no_trace() -> None:
    cache = ReferenceCache(24)
    cache.put(("a", RIGHT), features(3))
    cache.put(("b", RIGHT), features(3))
    assert cache.peek(("a", RIGHT)) is not None
    assert cache.peek(("z", RIGHT)) is None
    cache.put(("c", RIGHT), features(3))
    assert cache.keys == {("b", RIGHT), ("c", RIGHT)}
    assert (cache.stats.hits, cache.stats.misses) == (0, 0)


def test_an_entry_larger_than_the_budget_is_not_stored_and_evicts_nothing() -> None:
    cache = ReferenceCache(24)
    cache.put(("a", RIGHT), features(3))
    cache.put(("big", RIGHT), features(7))
    assert cache.keys == {("a", RIGHT)}
    assert cache.stats.evictions == 0


def test_an_entry_put_twice_counts_once() -> None:
    cache = ReferenceCache(24)
    cache.put(("a", RIGHT), features(3))
    cache.put(("a", RIGHT), features(5))
    assert cache.stats.size_bytes == 20
    assert cache.stats.entries == 1


def test_a_budget_of_zero_keeps_nothing() -> None:
    cache = ReferenceCache(0)
    cache.put(("a", RIGHT), features(1))
    assert cache.stats.entries == 0


def test_bytes_never_exceed_the_budget() -> None:
    cache = ReferenceCache(100)
    for index in range(200):
        cache.put((str(index % 17), RIGHT if index % 2 else LEFT), features(index % 23))
        held = [cache.peek(key) for key in cache.keys]
        assert cache.stats.size_bytes == sum(each.nbytes for each in held if each is not None) <= 100
        assert cache.stats.entries == len(held)
