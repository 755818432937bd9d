"""Settings are checked once, at construction, with a message that names the remedy."""

from __future__ import annotations

import dataclasses

import pytest

from voxr_ray.engine.options import EngineOptions
from voxr_ray.errors import ConfigurationError


def test_defaults_are_valid() -> None:
    options = EngineOptions()
    assert options.max_batch == 16
    assert options.batch_window_s == 0.005


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch", 0),
        ("continuous_capacity", 0),
        ("batch_window_s", -0.001),
        ("batch_window_s", float("nan")),
        ("batch_window_s", float("inf")),
        ("max_queue", -1),
        ("max_encode_queue", 0),
        ("stream_chunk_patches", 0),
        ("first_chunk_patches", 0),
        ("reference_cache_bytes", -1),
        ("pieces_per_cycle", 0),
        ("record_steps", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        EngineOptions(**{name: value})
    assert caught.value.param == name


def test_every_field_has_a_lower_bound() -> None:
    for field in dataclasses.fields(EngineOptions):
        with pytest.raises(ConfigurationError, match=field.name):
            EngineOptions(**{field.name: -1})


def test_a_first_chunk_larger_than_the_others_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="first_chunk_patches is 3"):
        EngineOptions(first_chunk_patches=3, stream_chunk_patches=2)


def test_zero_where_it_means_none_is_accepted() -> None:
    EngineOptions(batch_window_s=0.0, max_queue=0, reference_cache_bytes=0)
