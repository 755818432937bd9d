"""Metrics: what is counted when renders end in every possible way, and that state is never left behind."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing, suppress
from typing import Any

import pytest

from tests.fakes.driver import Driver, request
from tests.fakes.sink import FakeSink
from tests.fakes.slot_model import make_fake_model
from tests.unit.serve.local import LocalServer
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.reply import ThreadReply
from voxr_ray.engine.ticket import EngineSnapshot
from voxr_ray.errors import Cancelled, ModelError, Overloaded, TooLarge
from voxr_ray.messages import SynthRequest, SynthResult
from voxr_ray.serve.metric_names import ALL_METRICS, ENGINE_METRICS, ROUTER_METRICS, MetricKind
from voxr_ray.serve.metrics import EngineMetrics, RaySink, RenderKind, RouterMetrics
from voxr_ray.serve.publisher import Publisher

LONG = "a text that would take very long " * 5 + "@patches=never@"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def metrics(sink: FakeSink, clock: Clock) -> RouterMetrics:
    return RouterMetrics(sink, clock)


def running(sink: FakeSink) -> dict[str, float]:
    return {kind: sink.gauge("voxr_renders_running", kind=kind) for kind in RenderKind}


@pytest.mark.parametrize(
    ("error", "outcome", "name"),
    [
        (None, "served", ""),
        (TooLarge("x"), "refused", "TooLarge"),
        (Overloaded("x"), "refused", "Overloaded"),
        (ModelError("x"), "failed", "ModelError"),
        (RuntimeError("x"), "failed", "InternalError"),
        (Cancelled("x"), "cancelled", ""),
        (asyncio.CancelledError(), "cancelled", ""),
        (GeneratorExit(), "cancelled", ""),
    ],
)
def test_a_render_is_counted_once_however_it_ends(
    metrics: RouterMetrics, sink: FakeSink, error: BaseException | None, outcome: str, name: str
) -> None:
    with suppress(BaseException), metrics.render(RenderKind.WHOLE, SynthRequest(text="x")):
        assert running(sink) == {"whole": 1, "stream": 0, "session": 0}
        assert sink.gauge("voxr_samplers_running") == 1
        if error is not None:
            raise error
    assert sink.total("voxr_renders") == 1
    assert sink.total("voxr_renders", kind="whole", outcome=outcome, error=name) == 1
    assert set(running(sink).values()) == {0}
    assert sink.gauge("voxr_samplers_running") == 0


def test_different_samplers_are_counted(metrics: RouterMetrics, sink: FakeSink) -> None:
    renders = [metrics.render(RenderKind.STREAM, SynthRequest(text="x", cfg_value=cfg)) for cfg in (1.0, 2.0, 2.0)]
    for render in renders:
        render.__enter__()
    assert running(sink)["stream"] == 3
    assert sink.gauge("voxr_samplers_running") == 2


def test_a_listener_who_reads_slowly_makes_nothing_slower(metrics: RouterMetrics, sink: FakeSink, clock: Clock) -> None:
    begun_s = clock() - 0.5  # a body was parsed and a voice looked up
    with metrics.render(RenderKind.STREAM, SynthRequest(text="x"), begun_s) as render:
        clock.now_s += 1.5
        render.came(0, 48_000)
        render.asked()
        clock.now_s += 1.0
        render.came(48_000, 48_000)
        clock.now_s += 60.0
        render.asked()
        clock.now_s += 1.0
        render.came(48_000, 48_000)
    assert sink.observed("voxr_first_audio_seconds", kind="stream") == [3.0]
    assert sink.observed("voxr_real_time_factor", kind="stream") == [2.0]
    assert sink.total("voxr_audio_seconds", kind="stream") == 2.0


def test_only_a_served_render_has_a_real_time_factor(metrics: RouterMetrics, sink: FakeSink) -> None:
    with suppress(ModelError), metrics.render(RenderKind.STREAM, SynthRequest(text="x")) as render:
        render.came(48_000, 48_000)
        raise ModelError("x")
    assert sink.observed("voxr_real_time_factor", kind="stream") == []
    assert sink.total("voxr_audio_seconds") == 1


def test_a_structured_log_tells_of_every_render(
    metrics: RouterMetrics, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO),
        metrics.render(RenderKind.WHOLE, SynthRequest(text="x", request_id="r-1")) as it,
    ):
        clock.now_s += 2.0
        it.came(24_000, 48_000)
    (record,) = caplog.records
    assert record.getMessage() == "render served: whole, 0.50 s of audio, first audio after 2.000 s"
    assert vars(record) | {"request_id": "r-1", "outcome": "served", "audio_s": 0.5, "waited_s": 2.0,
                           "first_audio_s": 2.0} == vars(record)  # fmt: skip


def speak(engine: Engine, text: str, **fields: Any) -> None:
    """Render to the end, and wait until the engine has noticed that it is idle."""
    reply: ThreadReply[SynthResult] = ThreadReply()
    engine.submit(SynthRequest(text=text, seed=1, **fields), reply, stream=False)
    reply.result(20)
    until = time.monotonic() + 20
    while engine.snapshot().record.batch.rows:
        assert time.monotonic() < until
        time.sleep(0.001)


class TestEngineMetrics:
    """A record becomes metrics: nothing twice, nothing lost, nothing left."""

    def test_counters_grow_by_what_is_new(self, sink: FakeSink) -> None:
        metrics = EngineMetrics(sink)
        with Engine(make_fake_model, EngineOptions(max_batch=4)) as engine:
            speak(engine, "first @patches=4@")
            for _ in range(2):
                metrics.publish(engine.snapshot(), engine.record.steps())
            assert sink.total("voxr_engine_finished", reason="stop") == 1
            speak(engine, "second @patches=6@", cfg_value=3.0)
            metrics.publish(engine.snapshot(), engine.record.steps())
            counts = engine.snapshot().record.counts
        assert sink.total("voxr_engine_finished", reason="stop") == 2
        assert sink.total("voxr_engine_patches") == counts.patches == 10
        assert sink.total("voxr_engine_steps") == counts.steps == 10
        assert len(sink.observed("voxr_engine_step_seconds")) == 10
        assert sink.total("voxr_engine_lanes") == 10
        assert sink.total("voxr_engine_sampler_changes") == 1
        assert sink.gauge("voxr_engine_slots") == 4
        for name in ("rows", "occupancy", "width", "renders", "queue", "held", "samplers"):
            assert sink.gauge(f"voxr_engine_{name}") == 0

    def test_the_batch_is_seen_while_it_runs(self, sink: FakeSink) -> None:
        driver = Driver(max_batch=2)
        replies = [driver.submit(request(text="long @patches=30@", seed=n)) for n in range(3)]
        other = driver.submit(request(text="other @patches=3@", cfg_value=3.0))
        driver.cycle(4)
        EngineMetrics(sink).publish(EngineSnapshot(2, driver.inbox.load, driver.record.snapshot()), ())
        seen = {name: sink.gauge(f"voxr_engine_{name}") for name in ("rows", "width", "renders", "queue", "samplers")}
        assert seen == {"rows": 2, "width": 2, "renders": 4, "queue": 2, "samplers": 1}
        assert sink.gauge("voxr_engine_held") == 1
        assert sink.gauge("voxr_engine_occupancy") == 1
        assert not any(reply.ended for reply in (*replies, other))

    def test_the_thread_publishes_and_ends_with_the_last_state(self, sink: FakeSink) -> None:
        with Engine(make_fake_model) as engine:
            metrics = EngineMetrics(sink)
            publisher = Publisher(lambda: metrics.publish(engine.snapshot(), engine.record.steps()), period_s=0.005)
            until = time.monotonic() + 20
            while not sink.gauges:
                assert time.monotonic() < until
                time.sleep(0.001)
            speak(engine, "hello @patches=4@")
            publisher.close()
        assert sink.total("voxr_engine_patches") == 4
        assert sink.gauge("voxr_engine_rows") == 0

    def test_a_fault_in_the_metrics_costs_metrics_only(
        self, sink: FakeSink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        faults = iter([RuntimeError("once")])
        original = sink.set

        def failing(name: str, value: float, **labels: str) -> None:
            for fault in faults:
                raise fault
            original(name, value, **labels)

        monkeypatch.setattr(sink, "set", failing)
        with Engine(make_fake_model) as engine:
            metrics = EngineMetrics(sink)
            publisher = Publisher(lambda: metrics.publish(engine.snapshot(), engine.record.steps()), period_s=0.001)
            until = time.monotonic() + 20
            while not sink.gauges:
                assert time.monotonic() < until
                time.sleep(0.001)
            publisher.close()
        assert "metrics could not be published" in caplog.text


async def settled(local: LocalServer) -> Any:
    async with asyncio.timeout(20):
        while (snapshot := await local.replica.engine_record()).load.renders or snapshot.record.batch.rows:
            await asyncio.sleep(0.002)
    return snapshot


async def test_after_all_kinds_of_ends_every_gauge_is_zero(local: LocalServer) -> None:
    """Served, cancelled, refused and failed; whole and streamed; of several samplers."""

    async def leave(n: int) -> None:
        stream = local.service.render_stream(SynthRequest(text=f"{n} {LONG}"))
        async with aclosing(stream) as chunks:
            await anext(chunks)

    async def give_up(n: int) -> None:
        call = asyncio.create_task(local.service.render(SynthRequest(text=f"{n} {LONG}")))
        await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    calls: list[Any] = []
    for n in range(8):
        calls += [
            local.speak(input=f"fine {n} @patches=4@", stream=n % 2 == 0),
            local.speak(input=f"broken {n} @fail=prefill@"),
            local.speak(input="wrong", speed=2),
            local.speak(input=f"another sampler {n} @patches=3@", cfg_value=1.0 + n / 10),
            leave(n),
            give_up(n),
        ]
    await asyncio.gather(*calls)
    snapshot = await settled(local)
    total, sink = local.sink.total, local.sink
    assert total("voxr_renders", outcome="served") == 16
    assert total("voxr_renders", outcome="cancelled") == 16
    assert total("voxr_renders", outcome="failed", error="ModelError") == 8
    assert total("voxr_http_errors", status="400", code="invalid_value") == 8
    assert total("voxr_http_errors", status="500", code="internal_error") == 8
    assert set(running(sink).values()) == {0}
    assert sink.gauge("voxr_samplers_running") == 0
    engine = FakeSink()
    EngineMetrics(engine).publish(snapshot, ())
    busy = {key: value for key, value in engine.gauges.items() if value}
    assert {name for name, _ in busy} == {"voxr_engine_slots"}


async def test_a_stream_that_breaks_is_counted(local: LocalServer) -> None:
    with suppress(Exception):
        await local.speak(input="text @fail=decode:20@ @patches=40@", stream=True)
    assert local.sink.total("voxr_broken_streams", code="internal_error") == 1
    assert local.sink.total("voxr_renders", kind="stream", outcome="failed", error="ModelError") == 1
    assert local.sink.total("voxr_http_errors") == 0


async def test_refused_keys_are_counted() -> None:
    local = LocalServer({"api_keys": "secret"})
    assert (await local.speak(input="x")).status_code == 401
    assert local.sink.total("voxr_http_errors", status="401", code="invalid_api_key") == 1
    assert local.sink.total("voxr_renders") == 0
    await local.close()


def test_failover_is_counted(metrics: RouterMetrics, sink: FakeSink) -> None:
    metrics.retried()
    metrics.resumed()
    assert (sink.total("voxr_retries"), sink.total("voxr_resumed_streams")) == (1, 1)


def test_ray_takes_every_metric_of_the_table() -> None:
    names = [metric.name for metric in ALL_METRICS]
    assert len(set(names)) == len(names)
    for metrics in (ENGINE_METRICS, ROUTER_METRICS):
        sink = RaySink(metrics)
        for metric in metrics:
            labels = dict.fromkeys(metric.labels, "x")
            match metric.kind:
                case MetricKind.COUNTER:
                    sink.add(metric.name, 0, **labels)
                    sink.add(metric.name, 2, **labels)
                case MetricKind.GAUGE:
                    sink.set(metric.name, 0, **labels)
                case MetricKind.HISTOGRAM:
                    assert list(metric.boundaries) == sorted(set(metric.boundaries))
                    sink.observe(metric.name, 0.5, **labels)
        with pytest.raises(KeyError):
            sink.set("voxr_nonsense", 1)
