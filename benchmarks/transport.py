"""What each hop between engine and listener costs, per call and per chunk. The engine runs a model of hashes.

The same streams are taken at every stage of the way: from the engine's thread, through the replica's coroutines,
through the HTTP application in this process, over the replica's handle, over the router's, and over real HTTP. What a
stage adds to the one before is its price. Last, for comparison, chunks over real HTTP through two deployments that do
nothing else.

    python -m benchmarks.transport
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from ray import serve
from tqdm import tqdm

from benchmarks.bare import bare_application
from benchmarks.cluster import serving
from benchmarks.tables import report
from tests.fakes.slot_model import FakeSlotModel, make_fake_model
from voxr_ray.cli.tables import median
from voxr_ray.config import Settings
from voxr_ray.engine.reply import ThreadReply
from voxr_ray.messages import Summary, SynthRequest
from voxr_ray.serve.in_process import InProcess
from voxr_ray.serve.ingress import build_http_app
from voxr_ray.serve.library import Library
from voxr_ray.serve.replica import Replica
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.voices import Voices

Take = Callable[[int], Awaitable[float]]
"""Renders a stream of so many chunks and returns the seconds until its first."""

MODEL = {"sample_rate_hz": 16_000, "samples_per_patch": 2560}


def fake(settings: Settings) -> FakeSlotModel:
    """The model; here, because a replica has to import it."""
    return make_fake_model(**MODEL)


def words(chunks: int) -> str:
    return f"A few words of speech. @patches={chunks}@"


def request(chunks: int) -> SynthRequest:
    return SynthRequest(text=words(chunks), min_len=0, max_len=10_000, retry_badcase_ratio_threshold=100.0)


async def first_of(items: AsyncIterator[Any]) -> float:
    """Read to the end; seconds until the first item."""
    start_s, first_s = time.perf_counter(), 0.0
    async for _ in items:
        first_s = first_s or time.perf_counter() - start_s
    return first_s


async def ask_application(app: Any, body: bytes, on_audio: Callable[[], None]) -> None:
    """Call an ASGI application as a server does. httpx would wait for the whole answer."""
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        if message.get("body"):
            on_audio()

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await app(
        {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
         "path": "/v1/audio/speech", "raw_path": b"/v1/audio/speech", "root_path": "", "query_string": b"",
         "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)},
        receive, send,
    )  # fmt: skip
    if status != 200:
        raise RuntimeError(f"the application answered {status}")


def stages(local: Replica, app: Any, served: Any, proxied: httpx.AsyncClient) -> dict[str, Take]:
    """Every stage of the way, nearest to the engine first."""

    def on_thread(chunks: int) -> float:
        reply: ThreadReply[Summary] = ThreadReply()
        start_s, first_s = time.perf_counter(), 0.0
        local._engine.submit(request(chunks), reply, stream=True)
        for _ in reply:
            first_s = first_s or time.perf_counter() - start_s
        return first_s

    async def engine(chunks: int) -> float:
        return await asyncio.to_thread(on_thread, chunks)

    async def coroutines(chunks: int) -> float:
        return await first_of(local.synthesize_stream(request(chunks)))

    def body(chunks: int) -> dict[str, Any]:
        return {"input": words(chunks), "response_format": "pcm", "stream": True, "min_len": 0, "max_len": 10_000,
                "retry_badcase_ratio_threshold": 100.0}  # fmt: skip

    async def in_process(chunks: int) -> float:
        start_s, first_s = time.perf_counter(), 0.0

        def audio() -> None:
            nonlocal first_s
            first_s = first_s or time.perf_counter() - start_s

        await ask_application(app, json.dumps(body(chunks)).encode(), audio)
        return first_s

    async def by_http(**asked: Any) -> float:
        start_s, first_s = time.perf_counter(), 0.0
        async with proxied.stream(**asked) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_raw():
                first_s = first_s or time.perf_counter() - start_s
        return first_s

    async def by_proxy(chunks: int) -> float:
        return await by_http(method="POST", url="/v1/audio/speech", json=body(chunks))

    async def bare(chunks: int) -> float:
        return await by_http(method="GET", url="/bare", params={"chunks": chunks})

    replicas = Replicas(served.replica)
    router = served.router.options(method_name="synthesize_stream", stream=True)

    async def by_value(chunks: int) -> float:
        async with aclosing(replicas.stream("synthesize_stream", request(chunks))) as items:
            return await first_of(items)

    async def by_router(chunks: int) -> float:
        return await first_of(router.remote(request(chunks)))

    return {
        "engine, on a thread": engine,
        "replica, coroutines": coroutines,
        "HTTP application, in process": in_process,
        "replica's handle, by value": by_value,
        "router's handle": by_router,
        "HTTP through the proxy": by_proxy,
        "two bare deployments through the proxy": bare,
    }


async def measure(take: Take, arguments: argparse.Namespace) -> tuple[float, float, float]:
    """Milliseconds to a lone first chunk, milliseconds of each further one, chunks a second of parallel streams."""
    lone = [await take(1) for _ in range(arguments.calls)]
    start_s = time.perf_counter()
    first_s = await take(arguments.chunks)
    each_s = (time.perf_counter() - start_s - first_s) / (arguments.chunks - 1)
    start_s = time.perf_counter()
    await asyncio.gather(*(take(arguments.chunks) for _ in range(arguments.streams)))
    rate = arguments.streams * arguments.chunks / (time.perf_counter() - start_s)
    return median(lone) * 1e3, each_s * 1e3, rate


async def run(arguments: argparse.Namespace, settings: Settings, served: Any, folder: str) -> list[dict[str, Any]]:
    """All stages in turns."""
    local = Replica(settings, partial(fake, settings))
    replicas: Any = InProcess(local)
    library: Any = InProcess(Library(settings))
    app = build_http_app(SpeechService(settings, replicas, Voices(library)))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=arguments.streams)
    proxied = httpx.AsyncClient(base_url=served.url, timeout=300, limits=limits)
    takes = stages(local, app, served, proxied)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in takes}
    try:
        for take in takes.values():
            await take(2)
        with tqdm(total=len(takes) * arguments.rounds, unit="turn", disable=None) as bar:
            for _ in range(arguments.rounds):
                for name, take in takes.items():
                    found[name].append(await measure(take, arguments))
                    bar.update()
    finally:
        await proxied.aclose()
        with suppress(AttributeError):
            local.__del__()
    return [
        {
            "stage": name,
            "first chunk, ms": median(each[0] for each in rounds),
            "each further chunk, ms": median(each[1] for each in rounds),
            f"{arguments.streams} streams, chunks/s": median(each[2] for each in rounds),
        }
        for name, rounds in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what each hop costs.")
    parser.add_argument("--calls", type=int, default=20, help="lone calls in a round")
    parser.add_argument("--chunks", type=int, default=50, help="chunks of a longer stream")
    parser.add_argument("--streams", type=int, default=16, help="streams at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the table here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "model_name": "hashes",
            "device": "cpu",
            "batch_window_ms": 0,
            "stream_chunk_patches": 1,
            "max_batch": arguments.streams,
            "voices_dir": folder,
            "replica_options": {"num_cpus": 0.2},
        }
        settings = Settings.load(given, {})
        with serving(settings, fake) as served:
            serve.run(bare_application(), name="bare", route_prefix="/bare")
            lines = asyncio.run(run(arguments, settings, served, folder))
    report(f"A model of hashes, {arguments.rounds} rounds", lines, arguments.json)


if __name__ == "__main__":
    main()
