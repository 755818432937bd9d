"""The engine on its thread: life cycle, fatal faults, health and the watchdog (rules 1, 15, 16, 17)."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes.driver import Probe, check_alone, request
from tests.fakes.slot_model import Call, FakeSlotModel, make_fake_model
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.model import Padding
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.reply import ThreadReply
from voxr_ray.errors import (
    Cancelled,
    ConfigurationError,
    EngineStopped,
    InvalidRequest,
    Overloaded,
    TooLarge,
)
from voxr_ray.messages import Reference

LONG_S = 60
"""Bound of every wait. Never reached unless something hangs."""


class Gate:
    """A hook that holds the owner thread until it is opened."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.opened = threading.Event()

    def __call__(self, call: Call) -> None:
        self.arrived.set()
        assert self.opened.wait(LONG_S)


class Bench:
    """Builds engines whose model the test can reach, and ends them all."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.models: list[FakeSlotModel] = []
        self.now_s = 50.0

    def make(self, *, hooks: dict[str, Callable[[Call], None]] | None = None, **options: Any) -> Engine:
        def factory() -> FakeSlotModel:
            self.models.append(make_fake_model(hooks=hooks))
            return self.models[-1]

        engine = Engine(factory, EngineOptions(**({"batch_window_s": 0.0} | options)), clock=lambda: self.now_s)
        self.engines.append(engine)
        return engine

    @property
    def model(self) -> FakeSlotModel:
        return self.models[-1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    before = set(threading.enumerate())
    yield bench
    for engine in bench.engines:
        assert engine.close(drain=False, timeout_s=LONG_S)
    assert set(threading.enumerate()) <= before, "a thread was left behind"


def submit(engine: Engine, *texts: str, **fields: Any) -> list[ThreadReply[Any]]:
    replies = [ThreadReply[Any]() for _ in texts]
    for reply, text in zip(replies, texts, strict=True):
        engine.submit(request(text, **fields), reply, stream=False)
    return replies


class TestStart:
    def test_rule_1_the_model_is_built_and_called_on_the_owner_thread_alone(self, bench: Bench) -> None:
        built_on: list[int] = []
        engine = Engine(lambda: built_on.append(threading.get_ident()) or make_fake_model())
        bench.engines.append(engine)
        engine.start()
        model = engine.model
        assert isinstance(model, FakeSlotModel)
        replies = submit(engine, "a", "b @fail=prefill@", "c", reference=Reference.of_clip(np.arange(999), 16_000))
        for reply in replies[::2]:
            reply.result(LONG_S)
        owner = {call.thread for call in model.calls if call.op != "plan"}
        assert owner == set(built_on)
        assert owner != {threading.get_ident()}
        assert {call.thread for call in model.calls if call.op == "plan"} == {threading.get_ident()}

    def test_facts_are_known_after_the_start_and_not_before(self, bench: Bench) -> None:
        engine = bench.make(continuous_capacity=100_000)
        with pytest.raises(EngineStopped, match="not started"):
            _ = engine.spec
        engine.start()
        assert engine.spec == bench.model.spec
        assert engine.capacity == 32_768

    def test_a_submission_before_the_start_is_refused(self, bench: Bench) -> None:
        with pytest.raises(EngineStopped, match="has not started"):
            submit(bench.make(), "early")

    def test_a_setting_the_model_cannot_serve_is_raised_as_it_is(self) -> None:
        engine = Engine(lambda: make_fake_model(fail_load="no model at /nowhere"))
        with pytest.raises(ConfigurationError, match="no model at /nowhere"):
            engine.start(LONG_S)
        assert engine.close(timeout_s=LONG_S)

    def test_rule_15_a_failed_open_is_raised_and_refuses_every_later_job_with_the_cause(self) -> None:
        engine = Engine(lambda: make_fake_model(fail_open="out of memory: 3 GiB short"))
        with pytest.raises(EngineStopped, match="opening the batch failed: RuntimeError: out of memory") as caught:
            engine.start(LONG_S)
        assert isinstance(caught.value.__cause__, RuntimeError)
        for later in (lambda: submit(engine, "later"), lambda: engine.check_health(1.0)):
            with pytest.raises(EngineStopped, match="out of memory: 3 GiB short"):
                later()

    def test_anything_else_that_breaks_the_load_is_named(self) -> None:
        def factory() -> FakeSlotModel:
            raise OSError("disk on fire")

        engine = Engine(factory)
        with pytest.raises(EngineStopped, match="could not start: OSError: disk on fire") as caught:
            engine.start(LONG_S)
        assert isinstance(caught.value.__cause__, OSError)

    def test_even_an_exit_on_the_owner_thread_reaches_the_starter(self) -> None:
        def factory() -> FakeSlotModel:
            raise SystemExit(3)

        with pytest.raises(EngineStopped, match="SystemExit"):
            Engine(factory).start(LONG_S)

    def test_a_load_that_takes_too_long_gives_up_and_ends_when_it_can(self) -> None:
        let_go = threading.Event()
        engine = Engine(lambda: let_go.wait(LONG_S) and make_fake_model())
        with pytest.raises(EngineStopped, match=r"not loaded within 0\.001 s"):
            engine.start(0.001)
        with pytest.raises(EngineStopped, match="not loaded"):
            submit(engine, "later")
        let_go.set()
        assert engine.close(timeout_s=LONG_S)


class TestService:
    def test_renders_from_many_threads_at_once(self, bench: Bench) -> None:
        engine = bench.make(max_queue=100).start()
        wrong: list[BaseException] = []

        def call(index: int) -> None:
            try:
                for turn in range(5):
                    asked = request(f"thread {index} turn {turn}", seed=index)
                    with ThreadReply[Any]() as reply:
                        engine.submit(asked, reply, stream=False)
                        check_alone(reply.result(LONG_S), asked)
            except BaseException as error:  # noqa: BLE001 - carried to the test's thread
                wrong.append(error)

        threads = [threading.Thread(target=call, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert engine.load.renders == 0

    def test_a_stream_ends_with_its_summary(self, bench: Bench) -> None:
        engine = bench.make().start()
        reply = ThreadReply[Any]()
        ticket = engine.submit(request("stream"), reply, stream=True)
        chunks = list(reply)
        assert chunks[-1].summary == reply.result(0)
        assert (ticket.seed, ticket.text_tokens, ticket.seq_len, ticket.budget_patches) == (1, 6, 7, 46)

    def test_refusals_are_raised_in_the_calling_thread_and_leave_nothing(self, bench: Bench) -> None:
        gate = Gate()
        engine = bench.make(hooks={"step": gate}, max_batch=1, max_queue=1).start()
        with pytest.raises(InvalidRequest):
            submit(engine, "@tokens=none@")
        with pytest.raises(TooLarge):
            submit(engine, "x" * 5000)
        replies = submit(engine, "a", "b")
        with pytest.raises(Overloaded):
            submit(engine, "c")
        gate.opened.set()
        for reply in replies:
            reply.result(LONG_S)
        assert engine.snapshot().record.counts.refused == {"InvalidRequest": 1, "TooLarge": 1, "Overloaded": 1}

    def test_encodes(self, bench: Bench) -> None:
        engine = bench.make().start()
        reply = ThreadReply[Any]()
        engine.encode(Reference.of_clip(np.arange(1000), 16_000), Padding.RIGHT, reply)
        assert reply.result(LONG_S).shape == (7, 2, 4)
        ((digest, padding),) = engine.record.cached
        assert len(digest) == 64
        assert padding is Padding.RIGHT

    def test_b3_sixty_four_requests_half_of_them_aborted(self, bench: Bench) -> None:
        engine = bench.make(max_queue=64).start()
        asked = [request(f"number {index} @patches={5 + index % 30}@", seed=index) for index in range(64)]
        replies = [ThreadReply[Any]() for _ in asked]
        for index, (each, reply) in enumerate(zip(asked, replies, strict=True)):
            engine.submit(each, reply, stream=index % 4 == 0)
            if index % 2:
                # Sometimes the one just submitted, sometimes one under way.
                replies[index if index % 3 else index // 2].cancel()
        for reply in replies:
            try:
                reply.result(LONG_S)
            except Cancelled:
                assert reply.cancelled
        fresh = submit(engine, *(f"fresh {index}" for index in range(10)))
        for index, reply in enumerate(fresh):
            check_alone(reply.result(LONG_S), request(f"fresh {index}"))
        assert engine.load.renders == 0

    def test_a_snapshot_is_picklable_and_whole_while_the_engine_runs(self, bench: Bench) -> None:
        engine = bench.make(max_queue=100).start()
        replies = submit(engine, *(f"text {index} @patches=40@" for index in range(30)))
        while engine.load.renders:
            counts = engine.snapshot().record.counts
            assert counts.patches >= counts.steps
            assert sum(counts.finished.values()) <= counts.seated
        for reply in replies:
            reply.result(LONG_S)
        snapshot = pickle.loads(pickle.dumps(engine.snapshot()))  # noqa: S301
        assert snapshot.width == 16
        assert snapshot.record.counts.finished == {"stop": 30}


class TestFatal:
    def test_rule_15_a_failed_step_reaches_everybody_with_the_cause(self, bench: Bench) -> None:
        """Seated, under preparation, held, queued and encodes; then every later job, and the health check."""
        gate = Gate()
        engine = bench.make(hooks={"step": gate}, max_batch=2, max_queue=10).start()
        seated = submit(engine, "seated @fail=step:1@")
        assert gate.arrived.wait(LONG_S)
        others = submit(engine, "preparing", "held", cfg_value=9.0) + submit(engine, "queued")
        encode = ThreadReply[Any]()
        engine.encode(Reference.of_clip(np.arange(1000), 16_000), Padding.RIGHT, encode)
        gate.opened.set()
        seen = []
        for reply in [*seated, *others, encode]:
            with pytest.raises(EngineStopped, match="the engine has stopped: a step failed: RuntimeError: ") as caught:
                reply.result(LONG_S)
            assert isinstance(caught.value.__cause__, RuntimeError)
            seen.append(caught.value)
        assert len({id(error) for error in seen}) == len(seen)
        with pytest.raises(EngineStopped, match="a step failed"):
            submit(engine, "later")
        with pytest.raises(EngineStopped, match="a step failed"):
            engine.encode(Reference.of_clip(np.arange(10), 16_000), Padding.RIGHT, ThreadReply())
        with pytest.raises(EngineStopped, match="a step failed"):
            engine.check_health(1000.0)
        assert engine.load.renders == engine.load.encodes == 0
        assert engine.snapshot().record.counts.failed == {"EngineStopped": 5}
        assert engine.snapshot().record.batch.rows == 0

    @pytest.mark.parametrize("error", [MemoryError("full"), SystemExit(1), KeyboardInterrupt()])
    def test_rule_15_whatever_ends_the_thread_ends_the_waiting(self, bench: Bench, error: BaseException) -> None:
        def fail(call: Call) -> None:
            raise error

        engine = bench.make(hooks={"step": fail}).start()
        (reply,) = submit(engine, "x")
        with pytest.raises(EngineStopped, match=type(error).__name__):
            reply.result(LONG_S)

    def test_rule_15_nobody_waits_for_ever_whatever_the_moment(self, bench: Bench) -> None:
        """Submissions race the fatal step from four threads; each is refused or answered."""
        for _ in range(10):
            engine = bench.make(max_queue=1000).start()
            start = threading.Barrier(5)
            answered: list[int] = []

            def call(engine: Engine = engine, start: threading.Barrier = start, answered: list[int] = answered) -> None:
                start.wait()
                for _ in range(20):
                    reply = ThreadReply[Any]()
                    try:
                        engine.submit(request("neighbour"), reply, stream=False)
                        reply.result(LONG_S)
                    except EngineStopped:
                        pass
                    answered.append(1)

            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            start.wait()
            (fatal,) = submit(engine, "@fail=step:4@")
            for thread in threads:
                thread.join(LONG_S)
            assert len(answered) == 80
            with pytest.raises(EngineStopped):
                fatal.result(LONG_S)


class TestClose:
    def test_rule_16_seated_held_and_queued_jobs_finish_and_the_thread_ends(self, bench: Bench) -> None:
        gate = Gate()
        engine = bench.make(hooks={"step": gate}, max_batch=2, max_queue=20).start()
        replies = submit(engine, "seated", "a", "b", "c") + submit(engine, "held", "other", cfg_value=9.0)
        assert gate.arrived.wait(LONG_S)
        assert not engine.close(timeout_s=0)
        with pytest.raises(EngineStopped, match="closing"):
            submit(engine, "late")
        engine.check_health(1000.0)
        gate.opened.set()
        for reply in replies:
            reply.result(LONG_S)
        assert engine.close(timeout_s=LONG_S)
        with pytest.raises(EngineStopped, match="closed"):
            submit(engine, "later still")
        with pytest.raises(EngineStopped, match="closed"):
            engine.check_health(1.0)

    def test_rule_16_closing_without_draining_cancels(self, bench: Bench) -> None:
        gate = Gate()
        engine = bench.make(hooks={"step": gate}, max_batch=1).start()
        replies = submit(engine, "seated @patches=never@", "queued") + submit(engine, "held", cfg_value=9.0)
        assert gate.arrived.wait(LONG_S)
        assert not engine.close(drain=False, timeout_s=0)
        gate.opened.set()
        for reply in replies:
            with pytest.raises(Cancelled):
                reply.result(LONG_S)
        assert engine.close(timeout_s=LONG_S)
        assert bench.model.seated_slots == []
        assert bench.model.count("step") == 1

    def test_rule_16_closing_does_not_sit_out_the_window(self, bench: Bench) -> None:
        engine = bench.make(batch_window_s=1e6).start()
        (reply,) = submit(engine, "x")
        assert engine.close(timeout_s=LONG_S)
        check_alone(reply.result(0), request("x"))

    def test_closing_an_idle_engine_twice_and_one_that_never_started(self, bench: Bench) -> None:
        engine = bench.make().start()
        assert engine.close(timeout_s=LONG_S)
        assert engine.close(timeout_s=LONG_S)
        assert bench.make().close(timeout_s=LONG_S)

    def test_as_a_context_it_drains_in_peace_and_cancels_after_an_error(self, bench: Bench) -> None:
        with bench.make() as engine:
            (reply,) = submit(engine, "x")
        reply.result(0)

        gate = Gate()
        reply = ThreadReply[Any]()

        def work() -> None:
            with bench.make(hooks={"step": gate}) as engine:
                engine.submit(request("@patches=never@"), reply, stream=False)
                assert gate.arrived.wait(LONG_S)
                threading.Timer(0.01, gate.opened.set).start()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            work()
        with pytest.raises(Cancelled):
            reply.result(0)

    def test_an_engine_nobody_closed_ends_its_thread_when_it_is_collected(self) -> None:
        others = set(threading.enumerate())  # of engines of other tests, which may not be collected yet
        engine = Engine(make_fake_model).start()
        (thread,) = (each for each in threading.enumerate() if each.name == "voxr-engine" and each not in others)
        del engine
        gc.collect()
        thread.join(LONG_S)
        assert not thread.is_alive()

    @pytest.mark.parametrize("text", ["idle", pytest.param("@hang=step@", marks=pytest.mark.slow)])
    def test_an_engine_nobody_closed_does_not_hang_the_interpreters_exit(self, text: str) -> None:
        program = f"""
from tests.fakes.slot_model import make_fake_model
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.reply import ThreadReply
from voxr_ray.messages import SynthRequest
engine = Engine(make_fake_model).start()
reply = ThreadReply()
engine.submit(SynthRequest(text={text!r}), reply, stream=False)
if {text!r} == "idle":
    reply.result(60)
else:
    while not engine.model.count("step"):
        pass
print("done")
"""
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=LONG_S,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


class TestHealth:
    def test_an_idle_engine_is_healthy_for_ever(self, bench: Bench) -> None:
        engine = bench.make().start()
        bench.now_s += 1e6
        engine.check_health(1.0)
        submit(engine, "x")[0].result(LONG_S)
        bench.now_s += 1e6
        engine.check_health(1.0)

    @pytest.mark.parametrize("op", ["step", "decode", "prefill", "admit", "encode"])
    def test_a_thread_that_hangs_is_found_after_the_bound_and_not_before(self, bench: Bench, op: str) -> None:
        gate = Gate()
        engine = bench.make(hooks={op: gate}).start()
        bench.now_s += 1e6
        (reply,) = submit(engine, "x", reference=Reference.of_clip(np.arange(100), 16_000))
        assert gate.arrived.wait(LONG_S)
        bench.now_s += 9.0
        engine.check_health(10.0)
        bench.now_s += 2.0
        with pytest.raises(EngineStopped, match=r"no progress for 11\.0 s, the limit is 10 s"):
            engine.check_health(10.0)
        gate.opened.set()
        reply.result(LONG_S)
        engine.check_health(10.0)

    def test_long_work_that_goes_on_is_healthy(self, bench: Bench) -> None:
        def take_time(call: Call) -> None:
            bench.now_s += 4.0
            engine.check_health(5.0)

        engine = bench.make(hooks={"step": take_time, "decode": take_time, "prefill": take_time}).start()
        (reply,) = submit(engine, "@patches=30@")
        reply.result(LONG_S)
        assert bench.now_s > 240.0

    def test_a_model_that_loads_is_not_a_failure(self) -> None:
        let_go = threading.Event()
        engine = Engine(lambda: let_go.wait(LONG_S) and make_fake_model())
        starter = threading.Thread(target=engine.start)
        starter.start()
        engine.check_health(0.0)
        let_go.set()
        starter.join(LONG_S)
        engine.check_health(0.0)
        assert engine.close(timeout_s=LONG_S)


class TestWatchdog:
    @pytest.mark.parametrize("op", ["step", "prefill", "decode", "encode"])
    def test_rule_17_giving_up_tells_everybody_although_the_thread_hangs(self, bench: Bench, op: str) -> None:
        gate = Gate()
        engine = bench.make(hooks={op: gate}, max_batch=1).start()
        voice = Reference.of_clip(np.arange(100), 16_000)
        replies = [Probe() for _ in range(3)]
        for index, reply in enumerate(replies):
            engine.submit(request(str(index), reference=voice), reply, stream=True)
        assert gate.arrived.wait(LONG_S)
        engine.fail_all("no progress: given up")
        engine.fail_all("again")
        for reply in replies:
            assert isinstance(reply.error, EngineStopped)
            assert reply.error.message == "no progress: given up"
        with pytest.raises(EngineStopped, match="given up"):
            submit(engine, "later")
        with pytest.raises(EngineStopped, match="given up"):
            engine.check_health(1e9)
        assert engine.load.renders == 0
        work = {name: bench.model.count(name) for name in ("prefill", "step")}
        gate.opened.set()
        assert engine.close(timeout_s=LONG_S)
        # The thread notices at the end of its cycle, and does nothing for nobody.
        assert all(bench.model.count(name) <= count + 1 for name, count in work.items())
        assert all(reply.events == reply.endings for reply in replies)
        assert bench.model.open_works == 0

    def test_giving_up_an_idle_engine_ends_its_thread(self, bench: Bench) -> None:
        engine = bench.make().start()
        engine.fail_all("not wanted")
        assert engine._owner.join(LONG_S)
