"""Lost replicas without Ray: every way to ask for speech gives the undisturbed bytes, or a clear failure in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from tests.fakes.slot_model import make_fake_model
from tests.fakes.solo import render_alone
from tests.unit.serve.flaky import FlakyReplicas, Loss
from tests.unit.serve.local import LocalServer
from tests.unit.serve.sockets import connected
from tests.unit.serve.test_narration import LONG, narrated
from voxr_ray.audio import pcm16_bytes
from voxr_ray.errors import EngineStopped, ModelError, Overloaded, ReplicaLost, Unavailable, VoxrError
from voxr_ray.messages import SynthRequest
from voxr_ray.serve import failover, replica
from voxr_ray.serve.failover_record import FailoverCounts
from voxr_ray.serve.in_process import InProcess
from voxr_ray.serve.replica import Replica
from voxr_ray.serve.values import Beat, Delivered

TEXT = "this is to be heard whole @patches=24@"


class Flaky(LocalServer):
    """A server whose replicas are lost as told."""

    def __init__(
        self, losses: Sequence[Loss], *, calls: Sequence[VoxrError] = (), settings: Any = None, **model: Any
    ) -> None:
        self.replicas: FlakyReplicas

        def wrap(inner: InProcess) -> FlakyReplicas:
            self.replicas = FlakyReplicas(inner, losses, calls)
            return self.replicas

        super().__init__(settings, wrap, **model)

    @property
    def failovers(self) -> FailoverCounts:
        return self.service.failovers.snapshot()


Start = Callable[..., Flaky]


@pytest_asyncio.fixture
async def flaky(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Starts servers, and waits for nothing between two attempts."""
    monkeypatch.setattr(failover, "_WAITS_S", (0.0,))
    monkeypatch.setattr(failover, "_NO_ROOM_S", 0.001)
    servers: list[Flaky] = []

    def start(*losses: Loss, **arguments: Any) -> Flaky:
        servers.append(Flaky(losses, **arguments))
        return servers[-1]

    yield start
    for server in servers:
        assert all(attempt.closed for attempt in server.replicas.attempts)
        await server.close()


def solo(text: str = TEXT, seed: int = 4, **fields: Any) -> bytes:
    return pcm16_bytes(render_alone(SynthRequest(text=text, seed=seed, **fields), stream=True).samples)


@pytest.mark.parametrize("after", range(14))
@pytest.mark.parametrize("stream", [False, True])
async def test_a_loss_at_any_moment_changes_no_byte(flaky: Start, after: int, stream: bool) -> None:
    server = flaky(Loss(after))
    answer = await server.speak(input=TEXT, seed=4, stream=stream)
    assert answer.status_code == 200
    assert answer.content[44:] == solo()
    first, *second = server.replicas.attempts
    total = len(solo()) // 2
    whole = first.samples == total
    assert len(second) == (not whole)
    assert first.samples + sum(attempt.samples for attempt in second) == total, "nothing crosses the wire twice"
    counts = server.failovers
    assert (counts.retried, counts.resumed) == ((0, 0) if whole else (int(after == 0), int(after > 0)))
    assert (counts.recovered, counts.given_up) == (len(second), 0)
    seen = server.sink.total("voxr_retries"), server.sink.total("voxr_resumed_streams")
    assert seen == (counts.retried, counts.resumed), "and the metrics say so"


async def test_many_losses_with_audio_in_between(flaky: Start) -> None:
    """More than are survived in a row: each replica gets a little further."""
    server = flaky(*(Loss(1, EngineStopped("a step failed")) for _ in range(8)))
    answer = await server.speak(input=TEXT, seed=4, stream=True)
    assert answer.content[44:] == solo()
    assert server.failovers.resumed == 8
    assert server.failovers.lost == {"EngineStopped": 8}


async def test_it_does_not_go_on_for_ever_even_with_audio_in_between(flaky: Start) -> None:
    server = flaky(*(Loss(1) for _ in range(99)), settings={"max_failovers": 1})
    with pytest.raises(ReplicaLost, match="it died"):
        [chunk async for chunk in server.service.render_stream(SynthRequest(text="long @patches=60@ " * 9))]
    assert len(server.replicas.attempts) == 1 + failover._MOVES_PER_LOSS
    assert server.failovers.given_up == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_losses_in_a_row_end_in_a_clear_failure(flaky: Start, stream: bool) -> None:
    server = flaky(*(Loss() for _ in range(9)), settings={"max_failovers": 2})
    answer = await server.speak(input=TEXT, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert len(server.replicas.attempts) == 3
    assert server.failovers.given_up == 1
    assert (await server.speak(input="after that @patches=4@")).status_code == 503
    assert len(server.replicas.losses) == 3
    server.replicas.losses.clear()
    assert (await server.speak(input="and at last @patches=4@")).status_code == 200


async def test_replicas_lost_before_they_have_caught_up_are_not_held_against_it(flaky: Start) -> None:
    """They die faster than the answer can be rendered again; what does happen at the joint counts."""
    server = flaky(Loss(5), *(Loss(early=True) for _ in range(3)), settings={"max_failovers": 1})
    answer = await server.speak(input=TEXT, seed=4, stream=True)
    assert answer.content[44:] == solo()
    assert server.failovers.resumed == 4
    server = flaky(Loss(5), *(Loss(early=True) for _ in range(99)), settings={"max_failovers": 1})
    with pytest.raises(ReplicaLost):
        [chunk async for chunk in server.service.render_stream(SynthRequest(text=TEXT))]
    assert len(server.replicas.attempts) == 1 + failover._MOVES_PER_LOSS, "bounded all the same"


async def test_an_answer_that_kills_replicas_at_one_place_is_given_up(flaky: Start) -> None:
    """The replica has caught up each time, says so, and dies over the next patch."""
    server = flaky(Loss(5), settings={"max_failovers": 2})
    render = server.replica.synthesize_stream

    async def dies(request: SynthRequest, delivered: Delivered | None = None) -> AsyncIterator[Any]:
        if delivered is not None:
            yield Beat(caught_up=True)
            raise ReplicaLost("it died")
        async for item in render(request, delivered):
            yield item

    server.replica.synthesize_stream = dies  # type: ignore[method-assign, assignment]
    with pytest.raises(ReplicaLost):
        [chunk async for chunk in server.service.render_stream(SynthRequest(text=TEXT))]
    assert len(server.replicas.attempts) == 3


@pytest.mark.parametrize("error", [ModelError("a row failed"), Overloaded("full", retry_after_s=1)])
async def test_what_would_happen_anywhere_is_told_at_once(flaky: Start, error: VoxrError) -> None:
    server = flaky(Loss(0, error))
    assert (await server.speak(input=TEXT)).status_code in (500, 503)
    assert len(server.replicas.attempts) == 1
    assert server.failovers == FailoverCounts({}, 0, 0, 0, 0)


async def test_one_that_was_accepted_waits_for_room_elsewhere(flaky: Start) -> None:
    full = Loss(0, Overloaded("full", retry_after_s=60))
    server = flaky(Loss(2), *([full] * 20))
    answer = await server.speak(input=TEXT, seed=4, stream=True)
    assert answer.content[44:] == solo()
    assert server.failovers.resumed == 1


async def test_without_a_seed_it_goes_on_with_the_one_it_began_with(flaky: Start) -> None:
    server = flaky(Loss(1), Loss(0), Loss(3))
    answer = await server.speak(input=TEXT, stream=True)
    assert answer.content[44:] == solo(seed=int(answer.headers["x-voxr-seed"]))
    assert len({attempt.arguments[0].seed for attempt in server.replicas.attempts}) == 1


async def test_bad_takes_are_replaced_as_they_would_have_been(flaky: Start) -> None:
    request = {"text": "abc @patches=600,3,600@", "seed": 0}
    expected = render_alone(SynthRequest(**request))
    assert expected.summary.takes > 1
    server = flaky(Loss(0), Loss(1, EngineStopped("no")))
    result = await server.service.render(SynthRequest(**request))
    assert result.summary == expected.summary
    assert result.samples.tobytes() == expected.samples.tobytes()


async def test_a_result_lost_between_two_of_its_pieces(flaky: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "_PIECE_SAMPLES", 1000)
    server = flaky(Loss(3), Loss(2))
    answer = await server.speak(input=TEXT, seed=4, retry_badcase=False)
    assert answer.content[44:] == solo()
    assert [attempt.samples for attempt in server.replicas.attempts] == [3000, 2000, len(solo()) // 2 - 5000]


async def test_a_replica_that_falls_silent_is_given_up(flaky: Start) -> None:
    server = flaky(Loss(2, None), settings={"silence_timeout_s": 0.3})
    answer = await server.speak(input=TEXT, seed=4, stream=True)
    assert answer.content[44:] == solo()
    assert server.failovers.lost == {"ReplicaLost": 1}


async def test_a_call_that_nobody_takes_is_no_loss(flaky: Start) -> None:
    """It may wait for the first replica to start, for longer than a replica may be silent."""
    untaken = Loss(0, None, renders=False)
    server = flaky(*[untaken] * 5, Loss(1), settings={"silence_timeout_s": 0.5, "max_failovers": 1})
    answer = await server.speak(input=TEXT, seed=4, stream=True)
    assert answer.content[44:] == solo()
    assert (server.failovers.retried, server.failovers.resumed) == (0, 1)


async def test_nobody_waits_for_ever_for_a_replica(flaky: Start) -> None:
    settings = {"silence_timeout_s": 0.02, "request_timeout_s": 0.2}
    server = flaky(*(Loss(0, None, renders=False) for _ in range(99)), settings=settings)
    with pytest.raises(Unavailable, match=r"within 0\.2 s"):
        await server.service.render_one(SynthRequest(text=TEXT))
    assert server.failovers.given_up == 1


async def test_an_answer_that_ends_early_is_a_loss(flaky: Start) -> None:
    server = flaky(Loss(2, "end"))
    answer = await server.speak(input=TEXT, seed=4, stream=True)
    assert answer.content[44:] == solo()


async def test_a_deadline_passes_while_it_is_tried_again(flaky: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_WAITS_S", (1000.0,))
    server = flaky(Loss(0), settings={"request_timeout_s": 0.3})
    answer = await server.speak(input=TEXT)
    assert answer.status_code in (408, 503)


async def test_one_who_leaves_while_it_is_tried_again(flaky: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_WAITS_S", (100.0,))
    server = flaky(Loss(1))
    call = asyncio.create_task(server.speak(input=TEXT, stream=True))
    async with asyncio.timeout(20):
        while not server.failovers.resumed:
            await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert len(server.replicas.attempts) == 1
    async with asyncio.timeout(20):
        while (await server.replica.engine_record()).load.renders:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_parts_of_a_long_text_are_resumed_each(flaky: Start, stream: bool) -> None:
    server = flaky(Loss(2), Loss(0), Loss(1), Loss(9), Loss(2))
    answer = await server.speak(input=LONG, seed=5, stream=stream)
    assert answer.content[44:] == narrated(LONG, 5, 500)
    assert server.failovers.recovered > 0


async def test_a_part_that_kills_replicas_is_not_tried_without_end(flaky: Start) -> None:
    server = flaky(*([Loss(99)] + [Loss(0, EngineStopped("again")) for _ in range(99)]))
    server.replicas.losses[0] = Loss(10_000)
    answer = await server.speak(input=LONG, seed=5)
    assert answer.status_code == 503
    assert len(server.replicas.attempts) == 1 + 4


async def test_recordings_travel_with_every_attempt(flaky: Start) -> None:
    from tests.unit.serve.test_speech_http import clip

    server = flaky(Loss(1), Loss(2))
    fields = {"input": TEXT, "seed": 4, "ref_audio": clip(), "stream": True}
    answer = await server.speak(**fields)
    undisturbed = await server.speak(**fields)
    assert answer.content == undisturbed.content
    assert answer.content[44:] != solo()


async def test_events_carry_each_sample_once(flaky: Start) -> None:
    server = flaky(Loss(3), Loss(1))
    fields = {"input": TEXT, "seed": 4, "stream_format": "sse", "response_format": "pcm"}
    from base64 import b64decode

    def audio(answer: httpx.Response) -> bytes:
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        return b"".join(b64decode(event["audio"]) for event in events if "audio" in event)

    assert audio(await server.speak(**fields)) == solo()
    assert server.failovers.resumed == 2


@pytest.mark.parametrize("audio_format", ["mp3", "opus", "flac"])
async def test_encoded_answers_do_not_show_the_joint(flaky: Start, audio_format: str) -> None:
    server = flaky(Loss(3), Loss(1))
    fields = {"input": TEXT, "seed": 4, "stream": True, "response_format": audio_format}
    disturbed, undisturbed = await server.speak(**fields), await server.speak(**fields)
    assert server.failovers.resumed == 2
    assert len(disturbed.content) == len(undisturbed.content) > 0
    if audio_format != "opus":  # an Ogg stream has a random serial number
        assert disturbed.content == undisturbed.content


async def test_a_session_does_not_notice(flaky: Start) -> None:
    server = flaky(Loss(2), Loss(1), Loss(0))
    async with connected(server) as socket:
        socket.say("session.config", response_format="pcm", seed=4)
        socket.say("input.text", text=TEXT)
        socket.say("input.done")
        came = await socket.until("session.done")
    assert b"".join(message for message in came if isinstance(message, bytes)) == solo()
    assert server.failovers.recovered == 1


async def test_a_batch_loses_no_item(flaky: Start) -> None:
    server = flaky(*(Loss(n % 2) for n in range(6)))
    requests = [SynthRequest(text=f"item {n} @patches={4 + n}@", seed=n) for n in range(6)]
    from voxr_ray.serve.batch import synthesize_batch

    for result, request in zip(await synthesize_batch(server.service, requests), requests, strict=True):
        assert not isinstance(result, VoxrError)
        assert result.samples.tobytes() == render_alone(request).samples.tobytes()


async def test_calls_that_do_not_stream_are_made_again(flaky: Start) -> None:
    from tests.unit.serve.voice_files import recording

    lost: list[VoxrError] = [ReplicaLost("it died"), EngineStopped("stopped")]
    server = flaky(calls=lost)
    encoded = await server.service.encode_reference(recording())
    assert encoded.features is not None
    assert server.failovers.retried == 2
    server.replicas.calls = [ModelError("an encode failed")]
    with pytest.raises(ModelError):
        await server.service.encode_reference(recording())


class TestReplica:
    """The other end: beats, remainders, and the end of a replica whose engine has stopped."""

    @staticmethod
    def made(end: Callable[[], None] | None = None, settings: Any = None, **model: Any) -> Replica:
        from voxr_ray.config import Settings

        chosen = Settings.load({"device": "cpu"} | (settings or {}), {})
        return Replica(chosen, partial(make_fake_model, **model), end)

    @pytest.mark.parametrize("method", ["synthesize_stream", "synthesize_pieces"])
    async def test_it_says_that_it_is_there_until_it_has_audio(self, method: str) -> None:
        made = self.made(settings={"silence_timeout_s": 0.04})
        items = getattr(made, method)(SynthRequest(text="slow @hang=prefill@ @patches=3@", seed=1))
        assert [await anext(items) for _ in range(3)] == [Beat(), Beat(), Beat()]
        made._engine.model.unhang.set()  # type: ignore[attr-defined]
        audio = [item async for item in items if not isinstance(item, Beat)]
        assert audio[-1].summary is not None
        made.__del__()

    async def test_of_two_kinds_of_replica_one_cannot_go_on_for_the_other(self) -> None:
        request = SynthRequest(text=TEXT, seed=4)
        made = self.made()
        chunk = await anext(aiter(made.synthesize_stream(request)))
        assert not isinstance(chunk, Beat)
        wrong = Delivered(len(chunk.samples), len(chunk.samples), 12345)
        with pytest.raises(VoxrError, match="other audio"):
            [item async for item in made.synthesize_stream(request, wrong)]
        made.__del__()

    async def test_it_ends_once_after_its_engine_has_stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replica, "_LAST_WORDS_S", 0.01)
        ended: list[int] = []
        made = self.made(lambda: ended.append(1))
        requests = [SynthRequest(text=f"text {n} @fail=step:2@", seed=1) for n in range(3)]

        async def ask(request: SynthRequest) -> None:
            with pytest.raises(EngineStopped):
                [item async for item in made.synthesize_stream(request)]

        await asyncio.gather(*map(ask, requests))
        with pytest.raises(EngineStopped):
            await made.check_health()
        await asyncio.sleep(0.1)
        assert ended == [1]

    async def test_one_that_is_being_removed_ends_by_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replica, "_LAST_WORDS_S", 0.0)
        ended: list[int] = []
        made = self.made(lambda: ended.append(1))
        made.__del__()
        with pytest.raises(EngineStopped):
            await anext(aiter(made.synthesize_stream(SynthRequest(text="too late"))))
        await asyncio.sleep(0.05)
        assert ended == []


def test_nothing_of_this_costs_a_copy() -> None:
    """A chunk that is passed on undisturbed is the very same object."""
    from voxr_ray.messages import AudioChunk
    from voxr_ray.serve.resume import Progress, Remainder

    chunk = AudioChunk(np.zeros(4, np.float32), 0, 1, 48_000)
    assert Remainder(Delivered()).of(chunk) is chunk
    assert Progress().follow(chunk) is chunk
