"""Both ends of a resumed answer, on their own: however it is cut and lost, no sample is missing or comes twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxr_ray.errors import ResumeMismatch
from voxr_ray.messages import AudioChunk, StopReason, Summary
from voxr_ray.serve.resume import Progress, Remainder
from voxr_ray.serve.values import Delivered

SAMPLES = np.random.default_rng(1).standard_normal(100).astype(np.float32)
SUMMARY = Summary(7, 1, StopReason.STOP, 10, 3, 48_000)


def cut(samples: np.ndarray, places: list[int]) -> list[AudioChunk]:
    """An answer in chunks that end at these places; the last has the summary."""
    ends = sorted({0, *(place for place in places if place < len(samples)), len(samples)})
    chunks = [AudioChunk(samples[a:b], n, 7, 48_000) for n, (a, b) in enumerate(pairwise(ends))]
    return [*chunks[:-1], replace(chunks[-1], summary=SUMMARY)]


def rest(chunks: list[AudioChunk], delivered: Delivered) -> list[AudioChunk]:
    remainder = Remainder(delivered)
    return [left for chunk in chunks if (left := remainder.of(chunk)) is not None]


places = st.lists(st.integers(1, 99), max_size=20)


@given(st.lists(st.tuples(places, st.integers(0, 5)), min_size=1, max_size=5), places)
def test_any_cuts_and_any_losses_give_the_whole_answer(lost: list[tuple[list[int], int]], last: list[int]) -> None:
    progress = Progress()
    got: list[AudioChunk] = []
    for at, chunks in lost:  # each replica cuts in its own way and dies after some chunks
        delivered = progress.delivered
        taken = rest(cut(SAMPLES, at), delivered)[:chunks]
        assert sum(len(chunk.samples) for chunk in taken) <= 100 - delivered.samples, "nothing is sent again"
        got += [progress.follow(chunk) for chunk in taken]
        if progress.complete:
            break
    else:
        got += [progress.follow(chunk) for chunk in rest(cut(SAMPLES, last), progress.delivered)]
    assert np.concatenate([chunk.samples for chunk in got]).tobytes() == SAMPLES.tobytes()
    assert [chunk.index for chunk in got] == list(range(len(got)))
    assert [chunk.summary for chunk in got] == [None] * (len(got) - 1) + [SUMMARY]


def test_one_who_has_everything_but_the_end_gets_the_end() -> None:
    progress = Progress()
    progress.follow(AudioChunk(SAMPLES, 0, 7, 48_000))
    (last,) = rest(cut(SAMPLES, [30]), progress.delivered)
    assert len(last.samples) == 0
    assert last.summary == SUMMARY


@pytest.mark.parametrize("where", [0, 40, 49])
def test_other_audio_is_never_joined(where: int) -> None:
    """What differs anywhere in the last chunk delivered is found, whatever the other replica's chunks are."""
    progress = Progress()
    for chunk in cut(SAMPLES, [50])[:1]:
        progress.follow(chunk)
    other = SAMPLES.copy()
    other[where] += np.float32(1e-7)
    for at in ([], [10, 20, 50], [49], [51]):
        with pytest.raises(ResumeMismatch, match="after 50 samples"):
            rest(cut(other, at), progress.delivered)


def test_a_take_that_ends_before_what_was_delivered_is_another_one() -> None:
    progress = Progress()
    for chunk in cut(SAMPLES, [90])[:1]:
        progress.follow(chunk)
    with pytest.raises(ResumeMismatch, match="only 60"):
        rest(cut(SAMPLES[:60], [20]), progress.delivered)
