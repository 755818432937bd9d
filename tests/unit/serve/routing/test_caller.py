"""An ingress's renders between desk and replicas, Ray replaced by a few lines."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from voxr_ray.errors import EngineStopped, Overloaded
from voxr_ray.messages import SynthRequest
from voxr_ray.serve.routing.book import Book
from voxr_ray.serve.routing.caller import RoutedReplicas
from voxr_ray.serve.routing.desk import Call, Desk
from voxr_ray.serve.routing.values import CallTag, ReplicaName, SamplerKey, Wish, Withdrawn
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.values import Beat


class FakeServe:
    """Stands in for Serve and the replicas: the desk places, and each replica does what its script says."""

    def __init__(self, *names: str) -> None:
        self.desk = Desk(Book(width=1, room=2, keep_s=10.0, clock=lambda: 0.0))
        self.desk.update(names, [])
        self.scripts: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []
        self.withdrawn: list[tuple[str, CallTag]] = []
        self.gives_back = True
        self.ended: dict[CallTag, asyncio.Event] = {}

    async def stream(self, method: str, request: SynthRequest, call: Call) -> AsyncGenerator[Any, None]:
        name = self.desk.place(call)
        assert name is not None
        self.calls.append((method, name))
        async for item in self.scripts[name](call):
            yield item

    async def call(self, method: str, replica: ReplicaName, tags: tuple[CallTag, ...]) -> list[bool]:
        assert method == "withdraw"
        self.withdrawn.append((replica, tags[0]))
        if not self.gives_back:
            return [False]
        self.ended[tags[0]].set()
        return [True]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    fake = FakeServe("r0", "r1")

    def stream(self: Replicas, method: str, *args: Any) -> AsyncGenerator[Any, None]:
        return fake.stream(method, *args)

    async def call(self: Replicas, method: str, *args: Any) -> Any:
        return await fake.call(method, *args)

    monkeypatch.setattr(Replicas, "stream", stream)
    monkeypatch.setattr(Replicas, "call", call)
    return fake


@pytest.fixture
def replicas(serve: FakeServe) -> RoutedReplicas:
    return RoutedReplicas(None)  # type: ignore[arg-type]


def speaks(*items: str) -> Any:
    async def script(call: Call) -> AsyncGenerator[str, None]:
        for item in items:
            yield item

    return script


def fails(error: Exception) -> Any:
    async def script(call: Call) -> AsyncGenerator[str, None]:
        raise error
        yield

    return script


async def read(replicas: RoutedReplicas, cfg_value: float = 2.0) -> list[str]:
    request = SynthRequest(text="text", cfg_value=cfg_value)
    return [item async for item in replicas.stream("synthesize_stream", request)]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_is_counted_while_it_runs_and_not_after(serve: FakeServe, replicas: RoutedReplicas) -> None:
    serve.scripts = {"r0": speaks("a", "b"), "r1": speaks("a", "b")}
    assert await read(replicas) == ["a", "b"]
    await settle()
    assert serve.desk.book.calls == 0


async def test_a_refusal_is_tried_elsewhere_and_then_told(serve: FakeServe, replicas: RoutedReplicas) -> None:
    serve.scripts = {"r0": fails(Overloaded("full")), "r1": fails(Overloaded("full"))}
    with pytest.raises(Overloaded):
        await read(replicas)
    assert sorted(name for _, name in serve.calls) == ["r0", "r1"]
    await settle()
    assert serve.desk.book.calls == 0
    serve.scripts["r1"] = speaks("a")
    assert await read(replicas) == ["a"]


async def test_other_failures_and_failures_after_audio_are_not_tried_again(
    serve: FakeServe, replicas: RoutedReplicas
) -> None:
    serve.scripts = {"r0": fails(EngineStopped("gone")), "r1": fails(EngineStopped("gone"))}
    with pytest.raises(EngineStopped):
        await read(replicas)
    assert len(serve.calls) == 1

    async def late(call: Call) -> AsyncGenerator[str, None]:
        yield "a"
        raise Withdrawn("never after audio")

    serve.scripts = {"r0": late, "r1": late}
    with pytest.raises(Withdrawn):
        await read(replicas)
    assert len(serve.calls) == 2


def waits(serve: FakeServe) -> Any:
    """A replica where a call waits until it is taken back."""

    async def script(call: Call) -> AsyncGenerator[str, None]:
        serve.ended[call.tag] = asyncio.Event()
        await serve.ended[call.tag].wait()
        raise Withdrawn("taken back")
        yield

    return script


async def contended(serve: FakeServe, replicas: RoutedReplicas) -> tuple[asyncio.Task[list[str]], str, str]:
    """A call that waits; the replica where it does; the other one, which got free a moment ago."""
    blockers = {}
    for n, sampler in enumerate([SamplerKey(1.0, 10), SamplerKey(3.0, 10)]):
        blocker = CallTag("other", n)
        name, _ = serve.desk.book.place(blocker, Wish(sampler))
        blockers[name] = blocker
    serve.scripts = {"r0": waits(serve), "r1": waits(serve)}
    waiting = asyncio.create_task(read(replicas))
    await settle()
    ((_, source),) = serve.calls
    (free,) = blockers.keys() - {source}
    serve.scripts[free] = speaks("moved")
    serve.desk.close(blockers[free])
    return waiting, source, free


async def test_a_waiting_call_moves(serve: FakeServe, replicas: RoutedReplicas) -> None:
    waiting, source, free = await contended(serve, replicas)
    assert await waiting == ["moved"]
    assert [name for name, _ in serve.withdrawn] == [source]
    assert serve.calls == [("synthesize_stream", source), ("synthesize_stream", free)]


async def test_one_that_has_a_slot_by_then_stays(serve: FakeServe, replicas: RoutedReplicas) -> None:
    serve.gives_back = False
    waiting, source, free = await contended(serve, replicas)
    await settle()
    assert [name for name, _ in serve.withdrawn] == [source]
    assert {view.name: view.idle for view in serve.desk.book.views()}[free], "nothing is kept for it"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await settle()
    assert serve.desk.book.calls == 1, "only the other blocker is left"


async def test_a_call_that_ended_before_it_was_placed_is_never_counted() -> None:
    desk = Desk(Book(width=1, room=2, keep_s=10.0, clock=lambda: 0.0))
    desk.update(["r0"], [])
    call = Call(CallTag("me", 0), Wish(SamplerKey(1.0, 10)), print)
    call.close()
    assert desk.place(call) is None
    assert desk.book.calls == 0


async def test_a_call_pickles_to_its_tag() -> None:
    call = Call(CallTag("me", 4), Wish(SamplerKey(1.0, 10)), print)
    assert pickle.loads(pickle.dumps(call)) == CallTag("me", 4)  # noqa: S301


async def test_a_beat_is_no_audio_and_a_render_that_waits_with_beats_still_moves(
    serve: FakeServe, replicas: RoutedReplicas
) -> None:
    async def waits_then_leaves(call: Call) -> AsyncGenerator[Any, None]:
        yield Beat()
        serve.scripts["r0"] = serve.scripts["r1"] = speaks("a", "b")
        raise Withdrawn("given back while it waited")

    serve.scripts = {"r0": waits_then_leaves, "r1": waits_then_leaves}
    assert await read(replicas) == [Beat(), "a", "b"]
    assert len(serve.calls) == 2
