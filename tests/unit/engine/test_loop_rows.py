"""The loop's rules about seated rows: capacity, delivery, retakes, cancels, release (rules 7 to 14)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fakes.driver import Driver, Probe, check_alone, request
from tests.fakes.slot_model import make_fake_model
from voxr_ray.engine.model import ModelSpec
from voxr_ray.errors import Cancelled, TooLarge
from voxr_ray.messages import SEED_MAX, Prompt, Reference, StopReason, SynthRequest


def clip(samples: int = 1000, first: int = 1) -> np.ndarray:
    audio = np.arange(samples, dtype=np.int16)
    audio[0] = first
    return audio


class TestCapacity:
    def test_rule_7_a_request_that_does_not_fit_is_refused_at_submission_with_the_numbers(self) -> None:
        """B8 and S4: never a silent cut."""
        driver = Driver(continuous_capacity=500)
        text = "x" * 80
        with pytest.raises(TooLarge) as caught:
            driver.submit(request(text))
        for number in ("80 tokens", "81 positions", "490 patches", "571", "500", "max_len", "continuous_capacity"):
            assert number in caught.value.message
        assert driver.counts.refused == {"TooLarge": 1}
        driver.check_idle()

    def test_rule_7_the_bound_is_exact(self) -> None:
        asked = request("abc", max_len=6)
        fits, refuses = Driver(continuous_capacity=4 + 6 + 1), Driver(continuous_capacity=4 + 6)
        fits.submit(asked)
        with pytest.raises(TooLarge):
            refuses.submit(asked)

    def test_rule_7_recordings_count(self) -> None:
        """S4: long references and long texts together."""
        driver = Driver(continuous_capacity=500)
        driver.submit(request("abc"))
        with pytest.raises(TooLarge, match="and its recordings"):
            driver.submit(request("abc", reference=Reference.of_clip(clip(160 * 480), 16_000)))

    def test_rule_8_capacity_is_capped_by_what_the_model_can_represent(self) -> None:
        driver = Driver(make_fake_model(max_positions=50), continuous_capacity=4096)
        assert driver.model.capacity == 50
        with pytest.raises(TooLarge, match="less than 50"):
            driver.submit(request("a text of some length"))

    @pytest.mark.parametrize("size", [50, 500, 4096, 20_000])
    def test_b8_texts_of_every_size_are_complete_or_refused_before_any_audio(self, size: int) -> None:
        driver = Driver()
        asked = request(("word " * size)[:size], max_len=2000)
        try:
            reply = driver.submit(asked)
        except TooLarge:
            assert size >= 4096
            return
        driver.run()
        check_alone(reply.result, asked)


class TestSeating:
    def test_rule_7_a_row_speaks_with_reference_and_prompt(self) -> None:
        driver = Driver()
        asked = [request("some text", **mode) for mode in MODES]
        replies = [driver.submit(each) for each in asked]
        driver.run()
        for reply, each in zip(replies, asked, strict=True):
            check_alone(reply.result, each)
        # The clip was encoded once as a reference and once as a prompt.
        assert driver.record.snapshot().batch.cache.entries == 2
        driver.check_idle()

    def test_a_reference_is_encoded_once_for_seatings_and_encode_jobs_together(self) -> None:
        driver = Driver(make_fake_model(encode_patches_per_piece=1), max_batch=4)
        voice = Reference.of_clip(clip(), 16_000)
        replies = [driver.submit(request(str(index), reference=voice)) for index in range(3)]
        encoded = driver.encode(voice)
        driver.run()
        assert driver.model.count("encode") == len(encoded.result) == 7
        for index, reply in enumerate(replies):
            check_alone(reply.result, request(str(index), reference=voice))

    def test_r7_features_of_a_request_are_used_and_not_shared_by_digest(self) -> None:
        driver = Driver()
        voice = Reference.of_clip(clip(), 16_000)
        forged = Reference(digest=voice.digest, features=np.ones((7, 2, 4), dtype=np.float32))
        asked = [request("forged", reference=forged), request("honest", reference=voice)]
        replies = [driver.submit(each) for each in asked]
        driver.run()
        for reply, each in zip(replies, asked, strict=True):
            check_alone(reply.result, each)

    def test_rule_9_nothing_of_a_row_survives_its_release(self) -> None:
        """R2-like: the next occupant of a slot inherits no condition, context or noise."""
        driver = Driver(max_batch=1)
        first = request("first", prompt=prompt(), seed=9)
        second = request("second", seed=10)
        driver.submit(first)
        reply = driver.submit(second)
        driver.run()
        check_alone(reply.result, second)

    def test_the_fake_model_would_show_a_leak(self) -> None:
        """The test above means something: a lane that keeps its history gives other audio."""
        driver = Driver(make_fake_model(leaky=True), max_batch=1)
        driver.submit(request("first", seed=9))
        reply = driver.submit(request("second", seed=10))
        driver.run()
        with pytest.raises(AssertionError):
            check_alone(reply.result, request("second", seed=10))


class TestDelivery:
    @pytest.mark.parametrize(("first", "then"), [(1, 2), (1, 1), (2, 5), (3, 3)])
    def test_rule_12_streamed_audio_equals_the_buffered_audio_of_the_same_take(self, first: int, then: int) -> None:
        """F1 and F2: in every mode, whatever the chunks."""
        driver = Driver(first_chunk_patches=first, stream_chunk_patches=then, max_queue=64)
        asked = [
            request(f"text {index} @patches={5 + index}@", seed=index, **mode) for index in range(5) for mode in MODES
        ]
        streams = [driver.submit(each, stream=True) for each in asked]
        buffers = [driver.submit(each) for each in asked]
        driver.run()
        for stream, buffer, each in zip(streams, buffers, asked, strict=True):
            assert stream.streamed.samples.tobytes() == buffer.result.samples.tobytes()
            check_alone(stream.streamed, each, stream=True)
            sizes = [len(chunk.samples) // 480 for chunk in stream.chunks]
            assert sizes[0] == first
            assert all(size == then for size in sizes[1:-1])

    def test_rule_11_a_chunk_is_sent_in_the_cycle_that_draws_its_last_patch(self) -> None:
        driver = Driver(first_chunk_patches=1, stream_chunk_patches=3)
        reply = driver.submit(request("@patches=9@"), stream=True)
        driver.step()
        sizes = []
        while not reply.ended:
            sizes.append(len(reply.chunks))
            driver.cycle()
        assert sizes == [1, 1, 1, 2, 2, 2, 3, 3]
        assert [len(chunk.samples) // 480 for chunk in reply.chunks] == [1, 3, 3, 2]

    def test_a_buffered_caller_gets_no_chunk(self) -> None:
        driver = Driver()
        reply = driver.submit(request())
        driver.run()
        assert reply.events == reply.endings

    def test_every_row_is_decoded_at_every_step_in_one_call(self) -> None:
        """Rule 18: a cycle always costs the same; no decode is saved up."""
        driver = Driver(stream_chunk_patches=5, first_chunk_patches=5)
        for index in range(4):
            driver.submit(request(f"{index} @patches=30@"), stream=index % 2 == 0)
        driver.run(lambda: len(driver.rows) == 4)
        driver.cycle(3)
        before = len(driver.model.calls)
        driver.cycle(5)
        calls = list(driver.model.calls)[before:]
        assert [call.op for call in calls] == ["step", "decode"] * 5
        assert all(call.slots == (0, 1, 2, 3) for call in calls)

    def test_rule_9_slots_are_visited_in_order(self) -> None:
        driver = Driver(first_chunk_patches=1, stream_chunk_patches=1, pieces_per_cycle=16)
        order: list[str] = []
        for name in "abcd":
            reply = Probe(lambda event, name=name: order.append(name))
            driver.submit(request(f"{name} @patches=30@"), stream=True, reply=reply)
        driver.run(lambda: len(driver.rows) == 4)
        order.clear()
        driver.cycle(2)
        assert order == ["a", "b", "c", "d"] * 2

    def test_rule_9_a_done_row_is_told_before_its_lane_is_released(self) -> None:
        driver = Driver()
        seated: list[list[int]] = []
        reply = driver.submit(request(), reply=Probe(lambda event: seated.append(driver.model.seated_slots)))
        driver.run()
        assert reply.ended
        assert seated == [[0]]


class TestStopping:
    @pytest.mark.parametrize("text", ["a", "Hi", "OK.", "好"])
    def test_s1_very_short_texts_end(self, text: str) -> None:
        driver = Driver()
        reply = driver.submit(request(text))
        driver.run()
        assert reply.result.summary.stop_reason is StopReason.STOP

    def test_s1_a_model_that_never_stops_ends_at_its_budget_and_the_reply_says_so(self) -> None:
        driver = Driver()
        asked = request("Hi @patches=never@", max_len=25)
        reply = driver.submit(asked)
        driver.run()
        summary = reply.result.summary
        assert (summary.stop_reason, summary.patches) == (StopReason.LENGTH, 25)
        assert len(reply.result.samples) == 25 * 480

    def test_s3_a_stop_on_the_first_patch_gives_the_minimum(self) -> None:
        driver = Driver()
        for min_len in (0, 2, 7):
            reply = driver.submit(request("x @patches=1@", min_len=min_len))
            driver.run()
            assert reply.result.summary.patches == min_len + 2


class TestRetakes:
    RATIO = 0.5
    """With a 27-character text: bad from 14 patches on, budget 23."""

    def bad(self, text: str = "text @patches=20,20,20,6@..", seed: int = 0, **fields: Any) -> SynthRequest:
        return request(text, seed=seed, retry_badcase_ratio_threshold=self.RATIO, **fields)

    def test_rule_10_a_bad_take_is_rendered_again_with_the_next_seed(self) -> None:
        driver = Driver()
        asked = self.bad(seed=1, retry_badcase_max_times=5)
        reply = driver.submit(asked)
        driver.run()
        summary = reply.result.summary
        assert (summary.seed, summary.takes, summary.patches) == (3, 3, 6)
        check_alone(reply.result, asked)
        assert driver.counts.retakes == 2
        driver.check_idle()

    def test_rule_10_attempts_count_takes_and_the_last_one_is_kept(self) -> None:
        """S2: retries are bounded and use new seeds."""
        driver = Driver()
        asked = self.bad(seed=0, retry_badcase_max_times=3)
        reply = driver.submit(asked)
        driver.run()
        summary = reply.result.summary
        assert (summary.seed, summary.takes, summary.patches) == (2, 3, 20)
        check_alone(reply.result, asked)

    def test_rule_10_the_threshold_itself_is_bad(self) -> None:
        driver = Driver()
        asked = request("four @patches=10,5@", seed=0, retry_badcase_ratio_threshold=10 / 19)
        reply = driver.submit(asked)
        driver.run()
        assert reply.result.summary.takes == 2

    @pytest.mark.parametrize("fields", [{"retry_badcase": False}, {"retry_badcase_max_times": 1}])
    def test_rule_10_not_wanted(self, fields: dict[str, Any]) -> None:
        driver = Driver()
        reply = driver.submit(self.bad(**fields))
        driver.run()
        assert reply.result.summary.takes == 1

    def test_rule_10_a_stream_is_never_taken_again(self) -> None:
        driver = Driver()
        reply = driver.submit(self.bad(), stream=True)
        driver.run()
        assert reply.result.takes == 1

    def test_rule_10_the_retake_keeps_its_slot_ahead_of_queued_work(self) -> None:
        driver = Driver(max_batch=1)
        reply = driver.submit(self.bad(retry_badcase_max_times=5))
        driver.step()
        queued = driver.submit(request("queued", cfg_value=9.0))
        driver.run(lambda: driver.counts.retakes == 1)
        assert list(driver.seated) == [0]
        driver.run(lambda: reply.ended)
        assert not queued.ended
        assert driver.counts.retakes == 3
        driver.run()
        check_alone(queued.result, request("queued", cfg_value=9.0))

    def test_rule_10_a_retake_is_prepared_before_jobs_seated_later(self) -> None:
        driver = Driver(make_fake_model(prefill_positions_per_piece=4), max_batch=2, pieces_per_cycle=1)
        first = driver.submit(self.bad(retry_badcase_max_times=5))
        driver.run(lambda: driver.counts.retakes == 0 and len(driver.rows) == 1)
        driver.run(lambda: driver.loop.batch.slots.rows()[0][1].drawn == 19)
        driver.submit(request("x" * 200))
        driver.run(lambda: driver.counts.retakes == 1)
        driver.run(lambda: 0 in driver.rows)
        assert driver.rows == [0]
        driver.run()
        assert first.ended

    def test_rule_10_recordings_are_not_encoded_again(self) -> None:
        driver = Driver(reference_cache_bytes=0)
        asked = self.bad(reference=Reference.of_clip(clip(), 16_000), prompt=prompt(), retry_badcase_max_times=5)
        reply = driver.submit(asked)
        driver.run()
        assert reply.result.summary.takes == 4
        assert driver.model.count("encode") == 4
        check_alone(reply.result, asked)

    def test_rule_10_a_caller_who_left_ends_the_retakes(self) -> None:
        """S2."""
        driver = Driver()
        reply = driver.submit(self.bad(retry_badcase_max_times=10, text="text @patches=never@......"))
        driver.run(lambda: driver.counts.retakes == 2)
        reply.cancel()
        driver.run()
        assert isinstance(reply.error, Cancelled)
        assert driver.counts.retakes == 2
        driver.check_idle()

    def test_rule_10_a_caller_who_left_during_the_last_step_of_a_bad_take(self) -> None:
        driver = Driver()
        reply = Probe()
        driver.model.hooks["step"] = lambda call: reply.cancel() if driver.counts.patches == 19 else None
        driver.submit(self.bad(), reply=reply)
        driver.run()
        assert isinstance(reply.error, Cancelled)
        assert driver.counts.retakes == 0
        driver.check_idle()

    def test_seeds_wrap(self) -> None:
        driver = Driver()
        asked = self.bad(seed=SEED_MAX, retry_badcase_max_times=2)
        reply = driver.submit(asked)
        driver.run()
        check_alone(reply.result, asked)


class TestCancelling:
    def test_rule_11_the_slot_of_a_caller_who_left_is_free_before_the_step_after_next(self) -> None:
        driver = Driver(max_batch=1)
        reply = driver.submit(request("@patches=never@"), stream=True)
        driver.step()
        waiting = driver.submit(request("next"))
        reply.cancel()
        driver.cycle()
        assert driver.seated == {0: "next"}
        assert isinstance(reply.error, Cancelled)
        driver.run()
        check_alone(waiting.result, request("next"))

    def test_b4_cancelling_the_only_row_leaves_an_idle_engine_that_serves_the_next(self) -> None:
        driver = Driver()
        reply = driver.submit(request("@patches=never@"))
        driver.step()
        reply.cancel()
        driver.run()
        driver.check_idle()
        after = driver.submit(request("after"))
        driver.run()
        check_alone(after.result, request("after"))

    def test_cancelled_in_the_queue_before_any_cycle(self) -> None:
        driver = Driver()
        reply = driver.submit(request())
        reply.cancel()
        driver.run()
        assert isinstance(reply.error, Cancelled)
        assert driver.model.count("prefill") == 0
        driver.check_idle()

    def test_cancelled_before_it_was_submitted(self) -> None:
        driver = Driver()
        reply = Probe()
        reply.cancel()
        driver.submit(request(), reply=reply)
        driver.run()
        assert isinstance(reply.error, Cancelled)

    def test_cancelled_while_held(self) -> None:
        driver = Driver()
        driver.submit(request("a @patches=30@"))
        driver.step()
        held = driver.submit(request("b", cfg_value=9.0))
        behind = driver.submit(request("c"))
        driver.cycle()
        held.cancel()
        driver.cycle()
        assert isinstance(held.error, Cancelled)
        # With nobody held any more, the one behind joins.
        assert len(driver.seated) == 2
        driver.run()
        check_alone(behind.result, request("c"))

    @pytest.mark.parametrize("pieces", [1, 3, 9, 12])
    def test_cancelled_while_it_is_prepared(self, pieces: int) -> None:
        driver = Driver(make_fake_model(encode_patches_per_piece=1, prefill_positions_per_piece=2))
        reply = driver.submit(request("some text", reference=Reference.of_clip(clip(), 16_000)))
        driver.cycle(pieces)
        assert driver.rows == []
        reply.cancel()
        driver.run()
        assert isinstance(reply.error, Cancelled)
        assert driver.model.count("admit") == 0
        driver.check_idle()

    def test_a_cancelled_encode(self) -> None:
        driver = Driver(make_fake_model(encode_patches_per_piece=1))
        voice = Reference.of_clip(clip(), 16_000)
        leaves, stays = driver.encode(voice), driver.encode(voice)
        driver.cycle(3)
        leaves.cancel()
        driver.run()
        assert isinstance(leaves.error, Cancelled)
        assert stays.result.shape == (7, 2, 4)
        driver.check_idle()

    def test_a_consumer_that_fails_counts_as_a_caller_who_left(self) -> None:
        driver = Driver()

        def explode(event: object) -> None:
            raise RuntimeError("event loop is closed")

        broken = driver.submit(request("broken @patches=30@"), stream=True, reply=Probe(explode))
        other = driver.submit(request("other @patches=30@"))
        driver.run()
        assert len(broken.chunks) == 1
        check_alone(other.result, request("other @patches=30@"))
        assert driver.counts.cancelled == 1
        driver.check_idle()

    def test_a_job_is_withdrawn_while_it_waits_and_not_later(self) -> None:
        driver = Driver(max_batch=1)
        seated = driver.submit(request("seated"))
        driver.step()
        waits = driver.submit(request("waits"))
        assert driver.tickets[waits].waiting
        assert not driver.tickets[seated].waiting
        assert not driver.tickets[seated].withdraw()
        assert driver.tickets[waits].withdraw()
        driver.run()
        assert isinstance(waits.error, Cancelled)
        check_alone(seated.result, request("seated"))
        driver.check_idle()


class TestSeeds:
    @pytest.mark.parametrize(("seed", "used"), [(0, 0), (2**32 + 5, 5), (SEED_MAX, 2**32 - 1)])
    def test_b5_the_reply_names_the_seed_used(self, seed: int, used: int) -> None:
        driver = Driver()
        buffered, stream = driver.submit(request(seed=seed)), driver.submit(request(seed=seed), stream=True)
        driver.run()
        assert buffered.result.summary.seed == used
        assert {chunk.seed for chunk in stream.chunks} == {used}
        assert driver.tickets[buffered].seed == used
        check_alone(buffered.result, request(seed=seed))

    def test_b5_the_same_request_twice_gives_the_same_bytes_whatever_the_neighbours(self) -> None:
        driver = Driver()
        asked = request("same", seed=11)
        driver.submit(request("neighbour @patches=30@", seed=None))
        driver.step()
        first = driver.submit(asked)
        driver.run(lambda: first.ended)
        driver.submit(request("another", seed=12))
        second = driver.submit(asked)
        driver.run()
        assert first.result.samples.tobytes() == second.result.samples.tobytes()

    def test_b5_a_drawn_seed_is_named_and_reproduces_the_render(self) -> None:
        driver = Driver()
        reply = driver.submit(request("drawn", seed=None))
        driver.run()
        check_alone(reply.result, request("drawn", seed=reply.result.summary.seed))


def prompt() -> Prompt:
    samples = clip(800, first=3)
    return Prompt(digest=Reference.of_clip(samples, 16_000).digest, clip=samples, text="said before")


MODES: list[dict[str, Any]] = [
    {},
    {"reference": Reference.of_clip(clip(), 16_000)},
    {"prompt": prompt()},
    {"reference": Reference.of_clip(clip(), 16_000), "prompt": prompt()},
]


def test_the_spec_is_read_from_the_model() -> None:
    assert Driver().model.spec == ModelSpec(48_000, 16_000, 480, 160, 2, 4, 32_768)
