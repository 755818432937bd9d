"""The fake model catches the mistakes an engine could make; otherwise the tests above it would prove nothing."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from tests.fakes.driver import request
from tests.fakes.script import Script
from tests.fakes.slot_model import FakeSlotModel, make_fake_model
from tests.fakes.solo import render_alone
from voxr_ray.engine.model import Padding, SlotModel
from voxr_ray.engine.pieces import do_piece
from voxr_ray.errors import ConfigurationError
from voxr_ray.messages import Reference, Sampler, SynthRequest

SAMPLER = Sampler(2.0, 10)


def seat(model: FakeSlotModel, slot: int, asked: SynthRequest, seed: int = 1) -> None:
    work: Any = model.prefill(model.plan(asked), None, None)
    while (finished := do_piece(work)) is None:
        pass
    model.admit(slot, finished.result, seed)


def opened(**arguments: Any) -> FakeSlotModel:
    model = make_fake_model(**arguments)
    model.open(4, 4096)
    return model


def test_it_is_a_slot_model() -> None:
    model: SlotModel = make_fake_model()
    assert model.spec.samples_per_patch == 480


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2},
        {"text": "two one"},
        {"cfg_value": 3.0},
        {"inference_timesteps": 11},
        {"reference": Reference.of_clip(np.arange(1000), 16_000)},
    ],
)
def test_audio_depends_on_everything_that_goes_in(other: dict[str, Any]) -> None:
    one = render_alone(request("one two"))
    two = render_alone(request(**({"text": "one two"} | other)))
    assert one.samples[:480].tobytes() != two.samples[:480].tobytes()
    assert one.samples.tobytes() == render_alone(request("one two")).samples.tobytes()


def test_misuse_is_refused() -> None:
    model = opened()
    seat(model, 2, request())
    with pytest.raises(RuntimeError, match="lane 2 is taken"):
        seat(model, 2, request())
    with pytest.raises(RuntimeError, match="a step of 2 lanes"):
        model.step(2, SAMPLER)
    with pytest.raises(RuntimeError, match="a step of 5 lanes"):
        model.step(5, SAMPLER)
    with pytest.raises(RuntimeError, match="misuse: decode"):
        model.decode([2])
    model.step(3, SAMPLER)
    for slots in ([2, 2], [1], [1, 2]):
        with pytest.raises(RuntimeError, match="misuse: decode"):
            model.decode(slots)
    assert len(model.decode([2])[0]) == 480
    model.release(2)
    with pytest.raises(RuntimeError, match="lane 2 is free already"):
        model.release(2)
    with pytest.raises(RuntimeError, match="a step of 3 lanes"):
        model.step(3, SAMPLER)


def test_a_second_thread_is_refused() -> None:
    model = opened()
    caught: list[Exception] = []

    def call() -> None:
        try:
            model.release(0)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "second thread" in str(caught[0])


def test_a_prefill_that_does_not_fill_what_was_planned_is_refused() -> None:
    model = opened()
    plan = model.plan(request(reference=Reference.of_clip(np.arange(1000), 16_000)))
    with pytest.raises(ValueError, match="the plan says"):
        do_piece(model.prefill(plan, None, None))


def test_padding_matters_for_a_clip_that_does_not_fill_its_patches() -> None:
    model = opened(encode_patches_per_piece=100)
    clip = np.arange(170, dtype=np.int16)
    left, right = (do_piece(model.encode(clip, padding)) for padding in Padding)
    assert left is not None
    assert right is not None
    assert left.result.shape == right.result.shape == (2, 2, 4)
    assert not np.array_equal(left.result, right.result)


def test_scripts() -> None:
    script = Script.of("a @patches=3,never@ b @fail=decode:3@ @fail=admit@ @sleep=step:0.5@ @hang=prefill@ @audio=nan@")
    assert (script.length("", 0), script.length("", 1)) == (3, None)
    assert script.fail == {"decode": 3, "admit": 1}
    assert script.sleep == {"step": 0.5}
    assert script.hang == {"prefill"}
    assert script.audio == "nan"
    assert Script.of("one two").length("one two", 7) == 6


def test_it_is_made_as_a_loader_makes_one() -> None:
    factory = pickle.loads(pickle.dumps(functools.partial(make_fake_model, samples_per_patch=7680)))  # noqa: S301
    assert factory().spec.samples_per_patch == 7680
    with pytest.raises(ConfigurationError, match="no such model"):
        make_fake_model(fail_load="no such model")
