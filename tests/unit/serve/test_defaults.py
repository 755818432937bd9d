"""What a render gets where its request does not say."""

from __future__ import annotations

import pickle

import pytest

from voxr_ray.config import Settings
from voxr_ray.messages import SynthRequest
from voxr_ray.serve.defaults import RENDER_FIELDS, completed

OTHERS = Settings(
    cfg_value=3.0,
    inference_timesteps=6,
    min_len=4,
    max_len=500,
    retry_badcase=False,
    retry_badcase_max_times=2,
    retry_badcase_ratio_threshold=3.0,
    normalize=True,
)


def over_the_wire(request: SynthRequest) -> SynthRequest:
    copy: SynthRequest = pickle.loads(pickle.dumps(request))  # noqa: S301
    return copy


def test_what_is_not_said_is_the_servers() -> None:
    request = completed(over_the_wire(SynthRequest(text="one two", seed=7, request_id="mine")), OTHERS)
    assert {name: getattr(request, name) for name in (*RENDER_FIELDS, "normalize")} == {
        name: getattr(OTHERS, name) for name in (*RENDER_FIELDS, "normalize")
    }
    assert (request.text, request.seed, request.request_id) == ("one two", 7, "mine")


@pytest.mark.parametrize("name", [*RENDER_FIELDS, "normalize"])
def test_what_is_said_stands_even_if_it_is_the_default_of_the_class(name: str) -> None:
    said = SynthRequest.model_fields[name].default
    request = completed(over_the_wire(SynthRequest.model_validate({"text": "one two", name: said})), OTHERS)
    assert getattr(request, name) == said
    others = {each for each in (*RENDER_FIELDS, "normalize") if each != name}
    assert all(getattr(request, each) == getattr(OTHERS, each) for each in others)


def test_equal_defaults_change_nothing() -> None:
    request = SynthRequest(text="one two")
    assert completed(request, Settings()) == request
