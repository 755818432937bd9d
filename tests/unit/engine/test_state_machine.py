"""The loop under arbitrary schedules: hypothesis drives it cycle by cycle and checks what must always hold.

``DEEP_SCHEDULES=1`` runs many more and longer schedules.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes.driver import Driver, Probe, check_alone, request
from tests.fakes.slot_model import BAD_CLIP, FAILING_CLIP, make_fake_model
from tests.fakes.solo import render_alone
from voxr_ray.engine.jobs import RenderJob
from voxr_ray.engine.loop import Rest, Turn
from voxr_ray.engine.model import Padding
from voxr_ray.errors import BadAudio, Cancelled, EngineStopped, ModelError, Overloaded
from voxr_ray.messages import Prompt, Reference, SynthRequest

FAST = {"samples_per_patch": 8, "encode_patches_per_piece": 2, "prefill_positions_per_piece": 12}


def voice(first: int) -> Reference:
    samples = np.arange(700, dtype=np.int16)
    samples[0] = first
    return Reference.of_clip(samples, 16_000)


VOICES = [voice(1), voice(2), voice(FAILING_CLIP), voice(BAD_CLIP)]

faults = st.sampled_from(
    [""] * 12 + ["@fail=prefill@", "@fail=admit@", "@fail=decode:2@", "@fail=decode:5@", "@audio=nan@"]
)
recordings = st.sampled_from([None] * 16 + VOICES[:2] * 4 + VOICES[2:])


@st.composite
def requests(draw: st.DrawFn) -> SynthRequest:
    lengths = ",".join(str(draw(st.integers(1, 40))) for _ in range(draw(st.integers(1, 3))))
    fields: dict[str, Any] = {
        "cfg_value": draw(st.sampled_from([1.0] * 8 + [2.0, 3.0])),
        "min_len": draw(st.integers(0, 3)),
        "max_len": draw(st.sampled_from([1, 15, 2000, 2000, 2000])),
        "retry_badcase_ratio_threshold": draw(st.sampled_from([0.2, 6.0, 6.0])),
        "retry_badcase_max_times": draw(st.integers(1, 3)),
        "reference": draw(recordings),
    }
    if (clip := draw(recordings)) is not None:
        fields["prompt"] = Prompt(digest=clip.digest, clip=clip.clip, text="said")
    return request(f"text @patches={lengths}@{draw(faults)}", seed=draw(st.integers(0, 5)), **fields)


class LoopMachine(RuleBasedStateMachine):
    """Owns a driver, and every job ever accepted with what it may become."""

    @initialize(
        max_batch=st.sampled_from([1, 3, 4, 7]),
        max_queue=st.sampled_from([0, 4, 12]),
        window_s=st.sampled_from([0.0, 0.5]),
        pieces=st.integers(1, 3),
        cache_bytes=st.sampled_from([0, 400, 1 << 20]),
    )
    def begin(self, max_batch: int, max_queue: int, window_s: float, pieces: int, cache_bytes: int) -> None:
        self.driver = Driver(
            make_fake_model(**FAST),
            max_batch=max_batch,
            max_queue=max_queue,
            batch_window_s=window_s,
            pieces_per_cycle=pieces,
            reference_cache_bytes=cache_bytes,
            max_encode_queue=4,
        )
        self.renders: list[tuple[Probe, SynthRequest, bool]] = []
        self.encodes: list[tuple[Probe, Reference, Padding]] = []
        self.closing = False
        self.given_up = False
        self.opening = 0
        self.watch_reservations()

    def watch_reservations(self) -> None:
        """Check rules 5 and 6 at the moment they act: when free slots are given out."""
        loop = self.driver.loop
        fill_slots, reserve, slots = loop._fill_slots, loop.batch.reserve, loop.batch.slots
        seated: list[RenderJob] = []

        def checked_reserve(job: RenderJob) -> None:
            taken = {slot for slot, _ in slots.occupants()}
            reserve(job)
            (got,) = {slot for slot, _ in slots.occupants()} - taken
            assert got == min(set(range(slots.width)) - taken), "not the lowest free slot"
            seated.append(job)

        def checked_fill() -> None:
            running = slots.sampler
            before = list(loop.waiting._jobs)
            seated.clear()
            fill_slots()
            left = list(loop.waiting._jobs)
            took = [job for job in before if job not in left]
            assert left == [job for job in before if job in left], "waiting jobs changed their order"
            assert seated == took, "slots were not given out in order of submission"
            sampler = running or (took[0].sampler if took else None)
            for job in took:
                assert job.sampler == sampler, "two samplers in one batch"
                passed = [other for other in left if other.sequence < job.sequence]
                if running is not None:
                    assert not passed, "a later arrival joined while others were held"
                else:
                    assert all(other.sampler != sampler for other in passed), "overtaken within a sampler"
            if took and running is None:
                assert took[0] is before[0], "the oldest did not open the batch"
            if left and slots.free and slots.sampler is not None and running is not None:
                assert left[0].sampler != slots.sampler, "a slot stays free although the oldest job fits"

        loop.batch.reserve = checked_reserve  # type: ignore[method-assign]
        loop._fill_slots = checked_fill  # type: ignore[method-assign]

    # What callers do.

    @rule(asked=requests(), stream=st.booleans())
    def submit(self, asked: SynthRequest, stream: bool) -> None:
        full = self.driver.inbox.load.renders >= self.driver.options.max_batch + self.driver.options.max_queue
        if self.closing or self.given_up:
            with pytest.raises(EngineStopped):
                self.driver.submit(asked, stream=stream)
        elif full:
            with pytest.raises(Overloaded):
                self.driver.submit(asked, stream=stream)
        else:
            self.renders.append((self.driver.submit(asked, stream=stream), asked, stream))

    @precondition(lambda self: not self.closing and not self.given_up)
    @rule(recording=st.sampled_from(VOICES), padding=st.sampled_from(list(Padding)))
    def encode(self, recording: Reference, padding: Padding) -> None:
        if self.driver.inbox.load.encodes >= 4:
            with pytest.raises(Overloaded):
                self.driver.encode(recording, padding)
        else:
            self.encodes.append((self.driver.encode(recording, padding), recording, padding))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        replies = [reply for reply, *_ in [*self.renders, *self.encodes] if not reply.ended]
        if replies:
            data.draw(st.sampled_from(replies)).cancel()

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        replies = [reply for reply, *_ in self.renders if not reply.ended]
        if replies:
            self.driver.tickets[data.draw(st.sampled_from(replies))].withdraw()

    @rule(data=st.data())
    def break_a_consumer(self, data: st.DataObject) -> None:
        replies = [reply for reply, *_ in self.renders if not reply.ended]
        if replies:

            def explode(event: object) -> None:
                raise OSError("socket closed")

            data.draw(st.sampled_from(replies))._on_event = explode

    # What the loop and its surroundings do.

    @rule(times=st.integers(1, 6))
    def cycle(self, times: int) -> None:
        for _ in range(times):
            gone = [reply for reply, *_ in [*self.renders, *self.encodes] if reply.cancelled]
            heard = self.driver.loop.batch.under_way
            before = self.driver.counts
            outlook = self.driver.cycle()
            after = self.driver.counts
            assert all(reply.ended for reply in gone), "a caller left, and the next cycle did not notice"
            assert after.steps - before.steps <= 1
            assert after.pieces - before.pieces <= (self.driver.options.pieces_per_cycle if heard else 1)
            stepped = after.steps > before.steps
            assert stepped or self.given_up or not self.driver.loop.batch.under_way, "who has a patch gets the next one"
            self.opening = 0 if stepped or self.given_up or not self.driver.rows else self.opening + 1
            assert self.opening < self.driver.options.max_batch, "a first step waits no longer"
            if outlook is not Turn.GO_ON and not self.given_up:
                assert not self.driver.seated
                assert outlook is Turn.OVER or isinstance(outlook, Rest)
            self.check_state()

    @rule(asked=requests(), stream=st.booleans(), times=st.integers(1, 12))
    def submit_and_cycle(self, asked: SynthRequest, stream: bool, times: int) -> None:
        """The same again, so that batches fill."""
        self.submit(asked, stream)
        self.cycle(times)

    @rule()
    def pass_time(self) -> None:
        self.driver.now_s += 0.3

    @precondition(lambda self: not self.closing)
    @rule(really=st.sampled_from([False] * 20 + [True]))
    def close(self, really: bool) -> None:
        if really:
            self.driver.inbox.close()
            self.closing = True

    @precondition(lambda self: not self.given_up)
    @rule(really=st.sampled_from([False] * 10 + [True]))
    def give_up(self, really: bool) -> None:
        if really:
            self.driver.fail_all("given up")
            self.given_up = True
            assert all(reply.ended for reply, *_ in [*self.renders, *self.encodes])

    # What must always hold.

    def check_state(self) -> None:
        """After every cycle: slots, lanes and books agree."""
        driver = self.driver
        occupants = list(driver.loop.batch.slots.occupants())
        assert len({occupant.job.sampler for _, occupant in occupants}) <= 1
        assert len({occupant.job.sequence for _, occupant in occupants}) == len(occupants)
        assert driver.model.seated_slots == driver.rows
        for _, row in driver.loop.batch.slots.rows():
            assert row.drawn <= row.job.budget_patches
        counts = driver.counts
        ended = sum(counts.finished.values()) + counts.encodes + counts.cancelled + sum(counts.failed.values())
        load = driver.inbox.load
        assert counts.submitted == ended + load.renders + load.encodes
        assert counts.submitted == len(self.renders) + len(self.encodes)

    @invariant()
    def every_reply_ends_at_most_once(self) -> None:
        for reply, *_ in [*getattr(self, "renders", []), *getattr(self, "encodes", [])]:
            assert len(reply.endings) <= 1
            assert not reply.endings or reply.events[-1] is reply.endings[0]

    def teardown(self) -> None:
        """Close: those inside finish. Then every survivor equals its solo render and nothing is left."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        driver.inbox.close()
        assert driver.run() is Turn.OVER
        driver.loop.abandon()
        if self.given_up:
            assert all(reply.ended for reply, *_ in [*self.renders, *self.encodes])
            assert driver.model.open_works == 0
            assert (driver.inbox.load.renders, driver.inbox.load.encodes) == (0, 0)
        else:
            driver.check_idle()
        for reply, asked, stream in self.renders:
            self.check_render(reply, asked, stream)
        for reply, recording, _ in self.encodes:
            if isinstance(reply.error, BadAudio):
                assert recording is VOICES[3]
            elif isinstance(reply.error, ModelError):
                assert recording is VOICES[2]
            elif reply.error is None:
                assert len(reply.result) == 5
            else:
                assert reply.cancelled or self.given_up

    def check_render(self, reply: Probe, asked: SynthRequest, stream: bool) -> None:
        error = reply.error
        if error is None:
            check_alone(reply.streamed if stream else reply.result, asked, stream=stream, **FAST)
            return
        if isinstance(error, Cancelled):
            assert reply.cancelled
        elif isinstance(error, EngineStopped):
            assert self.given_up
        else:
            faulty = {each.digest for each in (asked.reference, asked.prompt) if each is not None}
            assert "@fail=" in asked.text or "@audio=" in asked.text or faulty & {each.digest for each in VOICES[2:]}
        if reply.chunks and "@" not in asked.text.split("@", 2)[2]:
            whole = render_alone(asked, stream=True, **FAST).samples
            got = np.concatenate([chunk.samples for chunk in reply.chunks])
            assert got.tobytes() == whole[: len(got)].tobytes()


deep = os.environ.get("DEEP_SCHEDULES", "") not in ("", "0")
TestLoopMachine = LoopMachine.TestCase
TestLoopMachine.settings = settings(
    max_examples=2000 if deep else 150,
    stateful_step_count=200 if deep else 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
