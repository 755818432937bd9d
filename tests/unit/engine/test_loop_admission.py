"""The loop's rules about who gets in, when, and where: queue, window, sampler, slots (rules 2 to 6)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes.driver import Driver, Probe, check_alone, request
from tests.fakes.slot_model import make_fake_model
from voxr_ray.engine.loop import Rest, Turn
from voxr_ray.engine.model import Padding
from voxr_ray.errors import Overloaded
from voxr_ray.messages import Reference, SynthRequest

A, B, C = ({"cfg_value": value} for value in (1.0, 2.0, 3.0))


def long(text: str = "long", **fields: object) -> SynthRequest:
    return request(f"{text} @patches=40@", **fields)


class TestQueue:
    def test_rule_2_a_cycle_drains_the_whole_queue(self) -> None:
        driver = Driver(max_batch=1, max_queue=20)
        for index in range(10):
            driver.submit(long(str(index)))
        driver.cycle()
        assert not driver.inbox.queued
        assert len(driver.loop.waiting) == 9

    def test_rule_2_an_encode_is_not_stuck_behind_jobs_that_wait_for_a_slot(self) -> None:
        driver = Driver(max_batch=1)
        running = driver.submit(long())
        driver.step()
        for index in range(5):
            driver.submit(long(str(index)))
        encoded = driver.encode(Reference.of_clip(np.arange(1, 161), 16_000))
        driver.cycle()
        assert encoded.result.shape == (1, 2, 4)
        assert not running.ended

    def test_rule_2_encodes_take_no_slot_and_run_without_any_render(self) -> None:
        driver = Driver(max_batch=1)
        encoded = driver.encode(Reference.of_clip(np.arange(1, 2000), 16_000))
        driver.run()
        assert encoded.result.shape == (13, 2, 4)
        assert driver.counts.steps == 0
        driver.check_idle()

    def test_features_given_to_encode_come_back_as_they_are(self) -> None:
        driver = Driver()
        features = np.ones((2, 2, 4), dtype=np.float32)
        encoded = driver.encode(Reference(digest="0", features=features))
        driver.run()
        assert np.array_equal(encoded.result, features)
        assert driver.model.count("encode") == 0

    def test_an_encode_hands_out_a_copy_of_what_the_cache_keeps(self) -> None:
        driver = Driver()
        clip = Reference.of_clip(np.arange(1, 2000), 16_000)
        first = driver.encode(clip)
        driver.run()
        kept = first.result.copy()
        first.result[:] = 0
        second = driver.encode(clip)
        driver.run()
        assert np.array_equal(second.result, kept)

    def test_b6_three_times_more_than_fit_are_served_or_refused_at_once(self) -> None:
        driver = Driver(max_batch=2, max_queue=3)
        served, refused = [], []
        for index in range(15):
            try:
                served.append(driver.submit(request(str(index))))
            except Overloaded as error:
                refused.append(error.retry_after_s or 0.0)
        assert len(served) == 5
        assert len(refused) == 10
        assert all(1 <= seconds <= 30 for seconds in refused)
        driver.run()
        assert all(reply.result for reply in served)
        assert driver.counts.refused == {"Overloaded": 10}
        driver.check_idle()

    def test_a_refused_encode_can_be_submitted_again(self) -> None:
        driver = Driver(max_encode_queue=1)
        clip = Reference.of_clip(np.arange(1, 161), 16_000)
        driver.encode(clip)
        reply = Probe()
        with pytest.raises(Overloaded):
            driver.admission.encode(clip, Padding.LEFT, reply)
        driver.run()
        driver.admission.encode(clip, Padding.LEFT, reply)
        driver.run()
        assert reply.result.shape == (1, 2, 4)

    def test_a_refused_reply_can_be_submitted_again(self) -> None:
        driver = Driver(max_batch=1, max_queue=0)
        driver.submit(request())
        reply = Probe()
        with pytest.raises(Overloaded):
            driver.submit(request("again"), reply=reply)
        driver.run()
        driver.submit(request("again"), reply=reply)
        driver.run()
        check_alone(reply.result, request("again"))


class TestCycle:
    def test_rule_3_only_an_empty_engine_rests(self) -> None:
        driver = Driver()
        assert driver.cycle() == Rest(None)
        reply = driver.submit(request())
        outlook = driver.cycle()
        while not reply.ended:
            assert outlook is Turn.GO_ON
            outlook = driver.cycle()
        assert outlook == Rest(None)

    def test_rule_3_a_cycle_steps_once(self) -> None:
        driver = Driver()
        driver.submit(long())
        driver.step()
        for _ in range(5):
            before = driver.model.count("step")
            driver.cycle()
            assert driver.model.count("step") == before + 1

    def test_rule_3_joiners_do_not_wait_for_the_batch(self) -> None:
        driver = Driver()
        first = driver.submit(long())
        driver.step()
        second = driver.submit(request("joiner"))
        driver.run(lambda: second.ended)
        assert not first.ended
        check_alone(second.result, request("joiner"))


class TestWindow:
    def make(self, **options: int) -> Driver:
        return Driver(batch_window_s=0.5, **options)

    def test_rule_4_an_idle_engine_waits_from_the_first_jobs_submission(self) -> None:
        driver = self.make()
        driver.submit(long("first"))
        driver.now_s += 0.125
        assert driver.cycle() == Rest(0.375)
        driver.submit(long("second"))
        driver.now_s += 0.25
        assert driver.cycle() == Rest(0.125)
        assert driver.seated == {}
        driver.now_s += 0.125
        driver.cycle()
        assert sorted(driver.seated) == [0, 1]

    def test_rule_4_a_job_that_waited_longer_already_opens_at_once(self) -> None:
        driver = self.make()
        driver.submit(long())
        driver.now_s += 0.6
        assert driver.cycle() is Turn.GO_ON
        assert driver.rows == [0]

    def test_rule_4_the_window_ends_early_when_the_batch_is_full(self) -> None:
        driver = self.make(max_batch=2)
        driver.submit(long("a", **A))
        driver.submit(long("stranger", **B))
        assert driver.cycle() == Rest(0.5)
        driver.submit(long("b", **A))
        assert driver.cycle() is Turn.GO_ON
        assert [text[0] for text in driver.seated.values()] == ["a", "b"]

    def test_rule_4_strangers_met_in_the_window_are_held(self) -> None:
        driver = self.make()
        driver.submit(long("a", **A))
        driver.submit(long("b", **B))
        driver.submit(long("c", **A))
        driver.cycle()
        driver.now_s += 0.5
        driver.step()
        assert sorted(text[0] for text in driver.seated.values()) == ["a", "c"]
        assert driver.record.snapshot().batch.held == 1

    def test_rule_4_a_joiner_waits_for_no_window(self) -> None:
        driver = self.make()
        driver.submit(long("a"))
        driver.now_s += 0.5
        driver.step()
        driver.submit(long("b"))
        driver.cycle()
        assert sorted(driver.seated) == [0, 1]

    def test_rule_4_a_held_job_that_opens_the_batch_waits_no_longer(self) -> None:
        driver = self.make()
        first = driver.submit(request("a", **A))
        driver.now_s += 0.5
        driver.step()
        driver.submit(long("b", **B))
        driver.run(lambda: first.ended)
        now = driver.now_s
        assert driver.cycle() is Turn.GO_ON
        assert driver.now_s == now
        assert driver.rows == [0]

    def test_rule_4_a_batch_that_opened_early_opens_again_at_once(self) -> None:
        driver = self.make(max_batch=1)
        driver.submit(request("a", **A))
        held = driver.submit(request("b", **C))
        now = driver.now_s
        driver.run(lambda: held.ended)
        assert driver.now_s == now

    def test_rule_4_the_window_comes_back_with_the_next_idle_stretch(self) -> None:
        driver = self.make()
        for _ in range(2):
            driver.submit(request())
            assert driver.cycle() == Rest(0.5)
            driver.run()
            assert driver.cycle() == Rest(None)

    def test_rule_4_a_first_job_that_leaves_in_the_window_leaves_an_idle_engine(self) -> None:
        driver = self.make()
        reply = driver.submit(request())
        driver.cycle()
        reply.cancel()
        assert driver.cycle() == Rest(None)
        driver.submit(request())
        assert driver.cycle() == Rest(0.5)

    def test_encodes_run_during_the_window(self) -> None:
        driver = self.make()
        driver.submit(long())
        encoded = driver.encode(Reference.of_clip(np.arange(1, 2000), 16_000))
        now = driver.now_s
        driver.run(lambda: encoded.ended)
        assert driver.now_s == now
        assert driver.seated == {}


class TestSampler:
    def test_rule_5_rows_share_one_sampler_and_strangers_wait_for_an_empty_batch(self) -> None:
        driver = Driver()
        first = driver.submit(request("a @patches=6@", **A))
        driver.step()
        stranger = driver.submit(request("b", **B))
        driver.run(lambda: first.ended)
        assert not stranger.ended
        driver.run()
        check_alone(stranger.result, request("b", **B))
        samplers = [step.sampler.cfg_value for step in driver.record.steps()]
        assert samplers == sorted(samplers)

    def test_rule_5_the_number_of_steps_is_part_of_the_sampler(self) -> None:
        driver = Driver()
        driver.submit(long("a", inference_timesteps=4))
        driver.submit(long("b", inference_timesteps=5))
        driver.cycle(5)
        assert len(driver.seated) == 1

    def test_rule_5_a_job_that_would_fit_waits_behind_a_stranger(self) -> None:
        driver = Driver()
        driver.submit(long("a", **A))
        driver.step()
        driver.submit(long("b", **B))
        late = driver.submit(request("late", **A))
        driver.cycle(10)
        assert len(driver.seated) == 1
        assert driver.record.snapshot().batch.held == 2
        assert not late.ended

    def test_rule_5_the_oldest_held_opens_and_those_with_its_sampler_follow_in_order(self) -> None:
        driver = Driver(max_batch=2)
        first = driver.submit(request("first @patches=5@", **C))
        driver.step()
        for name, sampler in [("a1", A), ("b1", B), ("a2", A), ("a3", A), ("b2", B)]:
            driver.submit(request(f"{name} @patches=8@", **sampler))
        driver.run(lambda: first.ended)
        driver.cycle(2)
        assert [text[:2] for text in driver.seated.values()] == ["a1", "a2"]
        order: list[str] = []
        seen = set()

        def watch() -> bool:
            for text in driver.seated.values():
                if text not in seen:
                    seen.add(text)
                    order.append(text[:2])
            return driver.loop.batch.slots.empty and not driver.loop.waiting

        driver.run(watch)
        # a3 found no room when its sampler opened, and b1 was older: it waits for the batch after that.
        assert order == ["a1", "a2", "b1", "b2", "a3"]

    def test_rule_5_held_jobs_of_the_running_sampler_take_slots_as_they_free(self) -> None:
        driver = Driver(max_batch=2)
        for index in range(4):
            driver.submit(request(f"a{index} @patches={4 + 4 * index}@", **A))
        driver.submit(request("b", **B))
        driver.submit(request("a4", **A))
        driver.run(lambda: "a3 @patches=16@" in driver.seated.values())
        assert driver.counts.finished == {"stop": 2}
        assert driver.record.snapshot().batch.held == 2
        driver.run()
        driver.check_idle()

    def test_rule_5_a_steady_flow_of_one_sampler_does_not_starve_another(self) -> None:
        driver = Driver(max_batch=2)
        driver.submit(request("flow", **A))
        driver.step()
        stranger = driver.submit(request("stranger", **B))
        for index in range(200):
            if stranger.ended:
                break
            driver.submit(request(f"flow {index}", **A))
            driver.cycle()
        assert stranger.ended
        assert index < 40
        driver.run()
        driver.check_idle()

    def test_rule_5_the_sampler_goes_when_every_seating_was_refused(self) -> None:
        driver = Driver()
        driver.submit(request("a @fail=prefill@", **A))
        driver.submit(request("b", **B))
        driver.run()
        assert driver.counts.failed == {"ModelError": 1}
        assert driver.counts.finished == {"stop": 1}

    def test_rule_5_a_reserved_slot_sets_the_sampler(self) -> None:
        driver = Driver(make_fake_model(prefill_positions_per_piece=1))
        driver.submit(long("a", **A))
        driver.cycle()
        assert driver.rows == []
        driver.submit(long("b", **B))
        driver.cycle()
        assert list(driver.seated) == [0]


class TestSlots:
    def test_rule_6_a_job_takes_the_lowest_free_slot(self) -> None:
        driver = Driver(max_batch=4)
        replies = [driver.submit(long(str(index))) for index in range(4)]
        driver.run(lambda: len(driver.rows) == 4)
        replies[2].cancel()
        replies[1].cancel()
        driver.cycle()
        assert driver.rows == [0, 3]
        driver.submit(long("new"))
        driver.cycle()
        assert driver.seated[1] == "new @patches=40@"

    def test_rule_6_a_step_covers_the_occupied_prefix_rounded_up(self) -> None:
        driver = Driver(max_batch=16)
        replies = [driver.submit(long(str(index))) for index in range(9)]
        driver.run(lambda: len(driver.rows) == 9)
        driver.cycle()
        assert driver.record.steps()[-1].width == 12
        for reply in replies[5:]:
            reply.cancel()
        driver.cycle()
        assert driver.record.steps()[-1].width == 6
        for reply in replies[1:]:
            reply.cancel()
        driver.cycle()
        assert driver.record.steps()[-1].width == 1

    def test_rule_6_a_slot_reserved_but_not_seated_is_not_stepped(self) -> None:
        driver = Driver(make_fake_model(prefill_positions_per_piece=1), pieces_per_cycle=1)
        driver.submit(long("a"))
        driver.step()
        driver.submit(long("b"))
        driver.cycle(3)
        assert sorted(driver.seated) == [0, 1]
        step = driver.record.steps()[-1]
        assert (step.width, step.slots, step.seatings) == (1, (0,), 1)

    def test_a_width_of_one_works(self) -> None:
        driver = Driver(max_batch=1)
        asked = [request(str(index), seed=index) for index in range(5)]
        replies = [driver.submit(each) for each in asked]
        driver.run()
        for reply, each in zip(replies, asked, strict=True):
            check_alone(reply.result, each)
        driver.check_idle()


class TestMoved:
    """Jobs that come from a lost engine."""

    def test_they_are_let_in_beyond_the_queue(self) -> None:
        driver = Driver(max_batch=1, max_queue=1)
        others = [driver.submit(long()), driver.submit(long())]
        with pytest.raises(Overloaded):
            driver.submit(long())
        asked = request("moved")
        moved = Probe()
        driver.admission.submit(asked, moved, stream=False, moved=True)
        driver.run()
        check_alone(moved.result, asked)
        assert all(other.ended for other in others)
        driver.check_idle()

    def test_they_are_served_before_those_who_wait(self) -> None:
        driver = Driver(max_batch=1, max_queue=8)
        running = driver.submit(long())
        driver.step()
        waiting = [driver.submit(request(f"waits {n}")) for n in range(3)]
        moved = Probe()
        driver.admission.submit(request("moved"), moved, stream=True, moved=True)
        driver.run(lambda: moved.ended)
        assert running.ended, "whoever has a slot keeps it"
        assert not any(other.ended for other in waiting)
        driver.run()
        assert all(other.ended for other in waiting)
