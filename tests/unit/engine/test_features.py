"""Features: used as given, found in the cache, or encoded once for everyone who needs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes.slot_model import BAD_CLIP, FAILING_CLIP, make_fake_model
from voxr_ray.engine.features import FeatureStore
from voxr_ray.engine.model import Padding
from voxr_ray.engine.pieces import Finished, do_piece
from voxr_ray.engine.reference_cache import ReferenceCache
from voxr_ray.errors import BadAudio, ModelError
from voxr_ray.messages import Recording, Reference

PATCH = 160


def clip(patches: int, first: int = 1) -> Recording:
    samples = np.arange(patches * PATCH, dtype=np.int16)
    samples[0] = first
    return Reference.of_clip(samples, 16_000)


def make(cache_bytes: int = 1 << 20) -> tuple[Any, FeatureStore]:
    model = make_fake_model(encode_patches_per_piece=1)
    return model, FeatureStore(model, ReferenceCache(cache_bytes))


def pieces(work: Any) -> tuple[int, np.ndarray]:
    count = 1
    while (finished := do_piece(work)) is None:
        count += 1
    return count, finished.result


def test_own_features_are_used_as_they_are_and_never_cached() -> None:
    """R7: a caller's features under somebody's digest must not become everybody's."""
    _, store = make()
    features = np.ones((3, 2, 4), dtype=np.float32)
    given = Reference(digest=clip(3).digest, features=features)
    assert store.known(given, Padding.RIGHT) is features
    assert store.known(clip(3), Padding.RIGHT) is None


def test_an_encode_takes_one_piece_for_each_of_the_models() -> None:
    """Rule 18."""
    model, store = make()
    count, features = pieces(store.encode(clip(5), Padding.RIGHT))
    assert count == 5
    assert features.shape == (5, 2, 4)
    assert store.encoded == 1
    assert model.open_works == 0


def test_what_was_encoded_is_known_for_the_same_padding_only() -> None:
    """R7: the same clip is other features as a prompt."""
    _, store = make()
    recording = Reference.of_clip(np.arange(PATCH + 7), 16_000)
    _, right = pieces(store.encode(recording, Padding.RIGHT))
    assert store.known(recording, Padding.RIGHT) is right
    assert store.known(recording, Padding.LEFT) is None
    _, left = pieces(store.encode(recording, Padding.LEFT))
    assert not np.array_equal(left, right)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_two_who_need_it_encode_once_and_share_the_pieces(cache_bytes: int) -> None:
    """With and without room in the cache."""
    model, store = make(cache_bytes)
    works = [store.encode(clip(4), Padding.RIGHT) for _ in range(2)]
    turns = [do_piece(works[turn % 2]) for turn in range(4)]
    assert turns[:3] == [None, None, None]
    last = do_piece(works[0])
    assert isinstance(turns[3], Finished)
    assert isinstance(last, Finished)
    assert last.result is turns[3].result
    assert model.count("encode") == 4
    assert store.encoded == 1


def test_one_who_comes_after_the_end_takes_it_from_the_cache() -> None:
    model, store = make()
    late = store.encode(clip(2), Padding.RIGHT)
    pieces(store.encode(clip(2), Padding.RIGHT))
    assert pieces(late)[0] == 1
    assert model.count("encode") == 2


def test_one_who_leaves_does_not_take_the_others_encode_along() -> None:
    model, store = make()
    stays, leaves = (store.encode(clip(4), Padding.RIGHT) for _ in range(2))
    do_piece(leaves)
    do_piece(stays)
    leaves.close()
    assert model.open_works == 1
    pieces(stays)
    assert model.count("encode") == 4


def test_the_last_one_to_leave_abandons_the_encode() -> None:
    model, store = make()
    works = [store.encode(clip(4), Padding.RIGHT) for _ in range(2)]
    for work in works:
        do_piece(work)
    for work in works:
        work.close()
    assert model.open_works == 0
    assert pieces(store.encode(clip(4), Padding.RIGHT))[0] == 4


def test_a_failure_of_the_model_fails_the_one_whose_turn_it_was_and_the_other_starts_again() -> None:
    """Rule 15: a failed encode fails one job alone."""
    model, store = make()
    broken = [True]

    def break_third(call: Any) -> None:
        if model.count("encode") == 3 and broken.pop():
            raise OSError("device hiccup")

    model.hooks["encode"] = break_third
    first, second = (store.encode(clip(4), Padding.RIGHT) for _ in range(2))
    do_piece(first)
    do_piece(second)
    with pytest.raises(ModelError, match="the encode of a recording failed: OSError: device hiccup"):
        do_piece(first)
    count, features = pieces(second)
    assert features.shape == (4, 2, 4)
    assert count == 4
    assert model.open_works == 0


def test_a_failed_encode_is_forgotten() -> None:
    _, store = make()
    for _ in range(2):
        with pytest.raises(ModelError):
            do_piece(store.encode(clip(1, FAILING_CLIP), Padding.RIGHT))
    assert store.known(clip(1, FAILING_CLIP), Padding.RIGHT) is None
    assert store.encoded == 0


def test_a_bad_recording_fails_everyone_who_shares_it_with_errors_of_their_own() -> None:
    model, store = make()
    calls = [0]

    def refuse_third(call: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise BadAudio("silence")

    model.hooks["encode"] = refuse_third
    first, second = (store.encode(clip(4), Padding.RIGHT) for _ in range(2))
    do_piece(first)
    do_piece(second)
    with pytest.raises(BadAudio) as one:
        do_piece(first)
    with pytest.raises(BadAudio, match="silence") as two:
        do_piece(second)
    assert one.value is not two.value
    assert calls[0] == 3


def test_a_recording_the_encoder_refuses_at_once_is_a_bad_one() -> None:
    _, store = make()
    with pytest.raises(BadAudio):
        do_piece(store.encode(clip(1, BAD_CLIP), Padding.RIGHT))
