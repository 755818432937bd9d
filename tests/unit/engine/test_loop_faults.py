"""Faults at every stage (rules 7, 15 and 17): one job's fault is one job's end, and a fatal one reaches everybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes.driver import Driver, Probe, check_alone, request
from tests.fakes.slot_model import BAD_CLIP, FAILING_CLIP, Call, make_fake_model
from voxr_ray.errors import BadAudio, EngineStopped, InvalidRequest, ModelError
from voxr_ray.messages import Reference


def clip(first: int = 1) -> Reference:
    samples = np.arange(1000, dtype=np.int16)
    samples[0] = first
    return Reference.of_clip(samples, 16_000)


FAULTS: dict[str, Any] = {
    "encode": request("encode", reference=clip(FAILING_CLIP)),
    "bad audio": request("bad audio", reference=clip(BAD_CLIP)),
    "prefill": request("prefill @fail=prefill@"),
    "admit": request("admit @fail=admit@"),
    "first decode": request("decode @fail=decode@ @patches=9@"),
    "later decode": request("decode @fail=decode:5@ @patches=9@"),
    "nan audio": request("@audio=nan@"),
    "no audio": request("@audio=none@"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_rule_15_a_fault_in_one_jobs_work_ends_that_job_alone(fault: str, stream: bool) -> None:
    driver = Driver()
    neighbours = [request(f"neighbour {index} @patches=12@", seed=index) for index in range(4)]
    replies = [driver.submit(each) for each in neighbours[:2]]
    guilty = driver.submit(FAULTS[fault], stream=stream)
    replies += [driver.submit(each) for each in neighbours[2:]]
    driver.run()
    expected = BadAudio if fault == "bad audio" else ModelError
    assert type(guilty.error) is expected
    for reply, each in zip(replies, neighbours, strict=True):
        check_alone(reply.result, each)
    assert driver.counts.failed == {expected.__name__: 1}
    driver.check_idle()
    after = driver.submit(request("after"))
    driver.run()
    check_alone(after.result, request("after"))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("encode", "the encode of a recording failed: RuntimeError: scripted"),
        ("prefill", "the prefill failed: RuntimeError: scripted"),
        ("admit", "the admission to a slot failed: RuntimeError: scripted"),
        ("first decode", "a decode failed: RuntimeError: scripted"),
    ],
)
def test_an_error_names_the_work_and_is_chained_without_the_models_frames(fault: str, words: str) -> None:
    driver = Driver()
    reply = driver.submit(FAULTS[fault])
    driver.run()
    assert reply.error is not None
    assert words in reply.error.message
    assert isinstance(reply.error.__cause__, RuntimeError)
    assert reply.error.__cause__.__traceback__ is None


def test_rule_7_a_failed_admission_leaves_the_slot_free_and_the_batch_untouched() -> None:
    driver = Driver(max_batch=2)
    driver.submit(request("row @patches=20@"))
    driver.step()
    driver.submit(FAULTS["admit"])
    driver.cycle()
    assert list(driver.seated) == [0]
    assert driver.model.seated_slots == [0]
    assert driver.model.count("release") == 0


def test_a_stream_that_breaks_has_delivered_what_came_before() -> None:
    driver = Driver(first_chunk_patches=1, stream_chunk_patches=1)
    reply = driver.submit(FAULTS["later decode"], stream=True)
    driver.run()
    assert len(reply.chunks) == 4
    assert isinstance(reply.error, ModelError)


def test_a_batched_decode_that_fails_is_tried_row_by_row_and_no_patch_is_lost() -> None:
    driver = Driver()
    asked = [request(f"{index} @patches=9@", seed=index) for index in range(3)]
    replies = [driver.submit(each) for each in asked]

    def fail_together(call: Call) -> None:
        if len(call.slots) > 1:
            raise OSError("too much at once")

    driver.model.hooks["decode"] = fail_together
    driver.run()
    for reply, each in zip(replies, asked, strict=True):
        check_alone(reply.result, each)


def test_a_retake_that_fails_ends_the_job() -> None:
    driver = Driver()
    reply = Probe()
    driver.submit(request("text @patches=20@.......", retry_badcase_ratio_threshold=0.5), reply=reply)
    driver.run(lambda: driver.counts.retakes == 1)
    driver.model.hooks["prefill"] = raising(OSError("no memory"))
    driver.run()
    assert isinstance(reply.error, ModelError)
    driver.check_idle()


def test_a_request_error_of_the_model_arrives_as_it_is() -> None:
    driver = Driver()
    driver.model.hooks["prefill"] = raising(InvalidRequest("not this text", param="text"))
    reply = driver.submit(request())
    driver.run()
    assert isinstance(reply.error, InvalidRequest)
    assert reply.error.param == "text"


def test_a_text_without_a_token_is_refused_at_submission() -> None:
    driver = Driver()
    with pytest.raises(InvalidRequest, match="no token"):
        driver.submit(request("@tokens=none@"))
    assert driver.counts.refused == {"InvalidRequest": 1}
    driver.check_idle()


def test_a_plan_that_fails_is_the_servers_fault_and_enters_nothing() -> None:
    driver = Driver()
    driver.model.hooks["plan"] = raising(KeyError("vocabulary"))
    with pytest.raises(ModelError, match="the plan of a request failed"):
        driver.submit(request())
    driver.check_idle()


def test_failed_encode_jobs() -> None:
    driver = Driver()
    bad, failing = driver.encode(clip(BAD_CLIP)), driver.encode(clip(FAILING_CLIP))
    fine = driver.encode(clip())
    driver.run()
    assert isinstance(bad.error, BadAudio)
    assert isinstance(failing.error, ModelError)
    assert fine.result.shape == (7, 2, 4)
    driver.check_idle()


def test_a_model_that_cannot_abandon_its_work_hurts_nobody() -> None:
    class Stubborn:
        """Work that fails to close."""

        def __iter__(self) -> Stubborn:
            return self

        def __next__(self) -> None:
            return None

        def close(self) -> None:
            raise OSError("busy")

    driver = Driver()
    driver.model.prefill = lambda *args: Stubborn()  # type: ignore[assignment, method-assign]
    reply = driver.submit(request())
    driver.cycle(3)
    reply.cancel()
    driver.run()
    assert reply.ended
    driver.check_idle()


class TestFatal:
    """Rule 15, on the loop: these leave :meth:`Loop.cycle`; what follows is in ``test_engine.py``."""

    def test_a_failed_step(self) -> None:
        driver = Driver()
        driver.submit(request("@fail=step:3@"))
        with pytest.raises(EngineStopped, match="a step failed: RuntimeError: scripted failure of step"):
            driver.run()

    def test_a_failed_release(self) -> None:
        driver = Driver()
        driver.submit(request("@fail=release@"))
        with pytest.raises(EngineStopped, match="the release of a slot failed"):
            driver.run()

    @pytest.mark.parametrize("op", ["encode", "prefill", "admit", "decode"])
    def test_a_model_that_knows_itself_lost_stops_the_engine_from_anywhere(self, op: str) -> None:
        driver = Driver()
        driver.model.hooks[op] = raising(EngineStopped("the device is gone"))
        driver.submit(request(reference=clip()))
        driver.encode(clip(3))
        with pytest.raises(EngineStopped, match="the device is gone"):
            driver.run()

    def test_a_step_that_answers_nonsense(self) -> None:
        driver = Driver()
        driver.model.step = lambda width, sampler: np.zeros(0, dtype=bool)  # type: ignore[method-assign]
        driver.submit(request())
        with pytest.raises(IndexError):
            driver.run()

    def test_a_decode_that_answers_for_too_few(self) -> None:
        driver = Driver()
        driver.model.decode = lambda slots: []  # type: ignore[method-assign]
        driver.submit(request())
        with pytest.raises(ValueError, match="shorter"):
            driver.run()

    def test_abandoning_leaves_no_work_open(self) -> None:
        driver = Driver(make_fake_model(encode_patches_per_piece=1, prefill_positions_per_piece=2), max_batch=2)
        for index in range(4):
            driver.submit(request(str(index), reference=clip(index)))
        driver.encode(clip(9))
        driver.cycle(5)
        assert driver.model.open_works > 0
        driver.loop.abandon()
        assert driver.model.open_works == 0
        assert driver.loop.batch.slots.empty


def raising(error: Exception) -> Any:
    def hook(call: Call) -> None:
        raise error

    return hook


@pytest.mark.parametrize("work", ["prefill", "admit"])
def test_the_log_of_a_fault_knows_the_request(work: str, caplog: pytest.LogCaptureFixture) -> None:
    """The owner thread serves many: no context of a caller reaches it."""
    driver = Driver()
    driver.submit(request(f"x @fail={work}@", request_id="r-1"))
    driver.submit(request("y"))
    driver.cycle(3)
    (failure,) = [record for record in caplog.records if record.exc_info]
    assert vars(failure)["request_id"] == "r-1"
