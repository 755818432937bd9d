"""R7: recordings share features by digest, so the door checks that a digest is its recording's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes.driver import Driver, request
from voxr_ray.engine.model import Padding
from voxr_ray.errors import InvalidRequest
from voxr_ray.messages import Prompt, Recording, Reference

VOICE = Reference.of_clip(np.arange(700, dtype=np.int16), 16_000)
OTHER = np.arange(1, 701, dtype=np.int16)


def test_a_request_cannot_borrow_another_recordings_features() -> None:
    driver = Driver()
    driver.submit(request("first", reference=VOICE))
    driver.run()
    for fields in (
        {"reference": Reference(digest=VOICE.digest, clip=OTHER)},
        {"prompt": Prompt(digest=VOICE.digest, clip=OTHER, text="said")},
        {"reference": Reference.of_clip(VOICE.clip, 8_000)},
    ):
        with pytest.raises(InvalidRequest, match="digest"):
            driver.submit(request("second", **fields))
    driver.check_idle()


def test_nor_can_an_encode() -> None:
    driver = Driver()
    with pytest.raises(InvalidRequest, match="digest"):
        driver.encode(Recording(digest=VOICE.digest, clip=OTHER), Padding.RIGHT)
    driver.check_idle()


def test_features_that_a_request_carries_are_its_own_and_need_no_digest() -> None:
    driver = Driver()
    spec = driver.model.spec
    features = np.ones((2, spec.patch_size, spec.feat_dim), dtype=np.float32)
    probe = driver.submit(request("carried", reference=Reference(digest="", features=features)))
    driver.run()
    assert probe.error is None
