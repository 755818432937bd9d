"""What does not come back: slots, queue places and memory, after crowds of callers of every kind.

    python -m benchmarks.soak leavers --requests 500
    python -m benchmarks.soak overload
    python -m benchmarks.soak streams --streams 64
    python -m benchmarks.soak memory --requests 2000 --model default
    python -m benchmarks.soak readers --patches 4000

Each starts a Ray of its own with one application, talks to it over HTTP, and ends with a verdict: exit status 1 if
something was left behind. ``fake`` renders nothing and costs nothing, so that everything around the model is what is
measured; ``default`` is the embedded checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from tqdm import tqdm

from benchmarks.soak_server import Server, serving

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
WAIT_S = 120.0
WARM_UP_SHARE = 0.25
FLAT = 0.05

TEXT = "A short text for the soak."


@dataclass
class Verdict:
    """What a run found.

    Attributes:
        name: Which run.
        figures: What was measured.
        faults: What must not have been.
    """

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def must(self, holds: bool, fault: str) -> None:
        """Note a fault unless something holds."""
        if not holds:
            self.faults.append(fault)


def body(server: Server, patches: int, **fields: Any) -> dict[str, Any]:
    """A request of about that many patches: the fake reads the number, a model is bounded by it."""
    text = (
        f"@patches={patches}@ {TEXT}" + " It is as long as what is asked for." * (patches // 150)
        if server.fake
        else TEXT
    )
    limits = {} if server.fake else {"min_len": max(0, patches - 2), "max_len": patches}
    return {"input": text, "response_format": "pcm", "retry_badcase": False} | limits | fields


async def idle(server: Server) -> bool:
    """Whether the engine becomes empty within a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        snapshot = await server.snapshot()
        load, batch = snapshot.load, snapshot.record.batch
        if not (load.renders or load.encodes or batch.rows or batch.seatings or batch.waiting or batch.held):
            return True
        await asyncio.sleep(0.05)
    return False


async def limited(jobs: Sequence[Callable[[], Awaitable[str]]], most: int, title: str) -> Counter[str]:
    """Outcomes of jobs, at most ``most`` of them at a time; one that takes two minutes hangs."""
    places = asyncio.Semaphore(most)
    progress = tqdm(total=len(jobs), desc=title, unit="request", file=sys.stderr, disable=None)

    async def run(job: Callable[[], Awaitable[str]]) -> str:
        async with places:
            try:
                async with asyncio.timeout(WAIT_S):
                    return await job()
            except TimeoutError:
                return "hung"
            except httpx.HTTPError as error:
                return type(error).__name__
            finally:
                progress.update()

    with progress:
        return Counter(await asyncio.gather(*(run(job) for job in jobs)))


async def leavers(server: Server, requests: int, concurrency: int, seed: int = 0) -> Verdict:
    """Callers of every kind and format, half of whom leave: before, at and after the first audio, or unserved."""
    verdict = Verdict("leavers")
    draw = random.Random(seed)
    before = (await server.snapshot()).record.counts

    async with client(server) as http:

        async def stay(stream: bool, audio_format: str) -> str:
            answer = await http.post(server.speech, json=body(server, 6, stream=stream, response_format=audio_format))
            return {200: "served", 503: "refused"}.get(answer.status_code, f"status {answer.status_code}")

        async def leave_early(after_s: float, stream: bool) -> str:
            call = asyncio.create_task(http.post(server.speech, json=body(server, 40, stream=stream)))
            await asyncio.wait({call}, timeout=after_s)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            return "left early"

        async def leave_late(chunks: int, audio_format: str) -> str:
            request = http.stream(
                "POST", server.speech, json=body(server, 40, stream=True, response_format=audio_format)
            )
            async with request as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    return "refused" if answer.status_code == 503 else f"status {answer.status_code}"
                async for _ in answer.aiter_raw():
                    chunks -= 1
                    if not chunks:
                        break
            return "left late"

        async def nonsense() -> str:
            answer = await http.post(server.speech, json={"input": "", "speed": 7})
            return "wrong" if answer.status_code == 400 else f"status {answer.status_code}"

        kinds: list[Callable[[], Callable[[], Awaitable[str]]]] = [
            lambda: partial(stay, draw.random() < 0.5, draw.choice(FORMATS)),
            lambda: partial(stay, draw.random() < 0.5, draw.choice(FORMATS)),
            lambda: partial(leave_early, draw.random() * 0.2, draw.random() < 0.5),
            lambda: partial(leave_late, draw.randint(1, 2), draw.choice(FORMATS)),
            lambda: nonsense,
        ]
        outcomes = await limited([draw.choice(kinds)() for _ in range(requests)], concurrency, "leavers")
        verdict.must(await idle(server), "the engine still holds something a minute later")
        fresh = await limited([partial(stay, True, audio_format) for audio_format in FORMATS * 2], 4, "fresh")
    counts = (await server.snapshot()).record.counts
    ended = sum(counts.finished.values()) + counts.cancelled + sum(counts.failed.values()) + counts.encodes
    verdict.figures = {
        "requests": requests, "concurrency": concurrency, **dict(sorted(outcomes.items())),
        "cancelled in the engine": counts.cancelled - before.cancelled,
    }  # fmt: skip
    expected = {"served", "refused", "left early", "left late", "wrong"}
    verdict.must(outcomes.keys() <= expected, f"unexpected: {sorted(outcomes.keys() - expected)}")
    verdict.must(fresh == {"served": len(FORMATS) * 2}, f"fresh requests afterwards: {dict(fresh)}")
    verdict.must(counts.submitted == ended, f"{counts.submitted} entered and {ended} ended")
    verdict.must(not sum(counts.failed.values()) - sum(before.failed.values()), f"failed: {dict(counts.failed)}")
    return verdict


async def overload(server: Server) -> Verdict:
    """Three times as many requests as slots and queue hold, at once."""
    verdict = Verdict("overload")
    room = server.width + server.queue
    patches = 600 if server.fake else 20  # so that nobody is served before the last has come
    refused_s: list[float] = []

    async with client(server) as http:

        async def ask(n: int) -> str:
            began_s = time.monotonic()
            answer = await http.post(server.speech, json=body(server, patches, stream=n % 2 == 0))
            if answer.status_code == 503:
                refused_s.append(time.monotonic() - began_s)
                return "refused" if int(answer.headers.get("retry-after", 0)) >= 1 else "refused without Retry-After"
            return "served" if answer.status_code == 200 else f"status {answer.status_code}"

        outcomes = await limited([partial(ask, n) for n in range(3 * room)], 3 * room, "overload")
    verdict.figures = {
        "room": room, "requests": 3 * room, **dict(sorted(outcomes.items())),
        "refusal, median ms": round(statistics.median(refused_s) * 1e3) if refused_s else None,
        "refusal, worst ms": round(max(refused_s) * 1e3) if refused_s else None,
    }  # fmt: skip
    verdict.must(outcomes.keys() <= {"served", "refused"}, f"unexpected: {dict(outcomes)}")
    verdict.must(outcomes["served"] >= room, f"only {outcomes['served']} served, there is room for {room}")
    verdict.must(await idle(server), "the engine still holds something a minute later")
    return verdict


async def streams(server: Server, count: int, patches: int, step_s: float) -> Verdict:
    """Streams at once, paced by the model: how late chunks arrive beyond its pace."""
    verdict = Verdict("streams")
    lateness_s: list[float] = []
    sizes: list[int] = []

    async with client(server) as http:

        async def listen() -> str:
            async with http.stream("POST", server.speech, json=body(server, patches, stream=True)) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    return f"status {answer.status_code}"
                arrivals = [(time.monotonic(), len(data)) async for data in answer.aiter_raw()]
            total = sum(size for _, size in arrivals)
            first_s, received = arrivals[0]
            for arrived_s, size in arrivals[1:]:
                received += size
                # A player that started with the first chunk needs what came before this one until then.
                due_s = first_s + (received - size) / total * patches * step_s
                lateness_s.append(max(0.0, arrived_s - due_s))
                sizes.append(size)
            return "served"

        began_s = time.monotonic()
        outcomes = await limited([listen for _ in range(count)], count, "streams")
        took_s = time.monotonic() - began_s
    late = sorted(lateness_s)
    verdict.figures = {
        "streams": count, "patches each": patches, "pace, ms a patch": step_s * 1e3, **dict(outcomes),
        "chunks/s": round(len(sizes) / took_s), "late, median ms": round(statistics.median(late) * 1e3, 1),
        "late, p99 ms": round(late[int(0.99 * (len(late) - 1))] * 1e3, 1), "late, worst ms": round(late[-1] * 1e3, 1),
        "took over pace": round(took_s / (patches * step_s), 2),
    }  # fmt: skip
    verdict.must(outcomes == {"served": count}, f"unexpected: {dict(outcomes)}")
    verdict.must(await idle(server), "the engine still holds something a minute later")
    return verdict


async def memory(server: Server, requests: int, concurrency: int, limit: float = FLAT) -> Verdict:
    """Short streams one after the other; private memory of every process of the application and of the proxies."""
    verdict = Verdict("memory")
    rounds = 20
    sizes: dict[str, list[int]] = {}

    def look() -> None:
        for name, size in server.memory().items():
            sizes.setdefault(name, []).append(size)

    async with client(server) as http:

        async def listen() -> str:
            answer = await http.post(server.speech, json=body(server, 3, stream=True))
            return "served" if answer.status_code == 200 else f"status {answer.status_code}"

        outcomes: Counter[str] = Counter()
        for n in range(rounds):
            outcomes += await limited([listen] * (requests // rounds), concurrency, f"memory {n + 1}/{rounds}")
            await idle(server)
            look()
    verdict.figures = {"requests": requests, "concurrency": concurrency, **dict(outcomes)}
    start = int(WARM_UP_SHARE * rounds)
    for name, series in sizes.items():
        # Medians of a quarter at each end: a garbage collection more or less is no leak.
        early, late = statistics.median(series[start : start + 5]), statistics.median(series[-5:])
        growth = late / early - 1
        verdict.figures[f"{name}, MiB"] = f"{early / 2**20:.1f} → {late / 2**20:.1f} ({growth:+.1%})"
        verdict.must(growth <= limit, f"{name} grew by {growth:.1%}")
    verdict.must(outcomes == {"served": requests // rounds * rounds}, f"unexpected: {dict(outcomes)}")
    return verdict


async def readers(server: Server, count: int, patches: int) -> Verdict:
    """Clients that take the first bytes and then nothing until everything is rendered: where the rest waits."""
    verdict = Verdict("readers")
    rendered = asyncio.Event()

    async with client(server) as http:

        async def listen(begun: asyncio.Event, length: int) -> int:
            async with http.stream("POST", server.speech, json=body(server, length, stream=True)) as answer:
                parts = answer.aiter_raw()
                size = len(await anext(parts))
                begun.set()
                await rendered.wait()
                async for part in parts:
                    size += len(part)
            return size

        async def crowd(length: int) -> tuple[dict[str, int], int]:
            rendered.clear()
            begun = [asyncio.Event() for _ in range(count)]
            calls = [asyncio.create_task(listen(each, length)) for each in begun]
            await asyncio.gather(*(each.wait() for each in begun))
            verdict.must(await idle(server), "a reader who does not read holds a slot")
            sizes = server.memory()
            rendered.set()
            return sizes, sum(await asyncio.gather(*calls))

        await crowd(3)  # what processes gather at first
        before = server.memory()
        during, size = await crowd(patches)
        await idle(server)
        after = server.memory()
    verdict.figures = {"readers": count, "bytes of all answers, MiB": f"{size / 2**20:.1f}"}
    for name in during:
        grown = during[name] - before[name]
        verdict.figures[f"{name} while nobody reads, MiB"] = (
            f"{grown / 2**20:+.1f} ({grown / size:+.2f} of the answers)"
        )
        verdict.figures[f"{name} afterwards, MiB"] = f"{(after[name] - before[name]) / 2**20:+.1f}"
        verdict.must(grown <= 2 * size, f"{name} grew by more than twice what nobody read")
    return verdict


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A short one, for the sake of Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="vs", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def client(server: Server) -> httpx.AsyncClient:
    """A client without limits of its own."""
    return httpx.AsyncClient(timeout=WAIT_S, limits=httpx.Limits(max_connections=None))


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for what does not come back after crowds of callers.")
    parser.add_argument("run", choices=("leavers", "overload", "streams", "memory", "readers"))
    parser.add_argument("--model", choices=("fake", "default"), default="fake")
    parser.add_argument("--requests", type=int, default=500, help="of leavers and memory")
    parser.add_argument("--concurrency", type=int, default=64, help="of leavers and memory")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument(
        "--patches", type=int, default=60, help="of each of the streams, or of what readers do not read"
    )
    parser.add_argument("--step-ms", type=float, default=160.0, help="pace of the fake model in streams")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--json", type=Path, help="also write the result here")
    chosen = parser.parse_args()
    step_s = chosen.step_ms / 1000 if chosen.run == "streams" else 0.005
    width = max(chosen.width, chosen.streams) if chosen.run == "streams" else chosen.width
    # A patch of VoxCPM2's where bytes are what is measured, a short one where they would only be in the way.
    samples = 7680 if chosen.run == "readers" else 120
    fake = chosen.model == "fake"
    with (
        temporary_folder() as folder,
        serving(folder, fake=fake, width=width, queue=chosen.queue, step_s=step_s, samples_per_patch=samples) as server,
    ):
        runs: dict[str, Callable[[], Coroutine[Any, Any, Verdict]]] = {
            "leavers": lambda: leavers(server, chosen.requests, chosen.concurrency),
            "overload": lambda: overload(server),
            "streams": lambda: streams(server, chosen.streams, chosen.patches, step_s),
            "memory": lambda: memory(server, chosen.requests, chosen.concurrency),
            "readers": lambda: readers(server, chosen.width, chosen.patches),
        }
        verdict = asyncio.run(runs[chosen.run]())
    print(f"\n{verdict.name}, {chosen.model} model, width {width}, {os.cpu_count()} cores\n")
    print("| | |\n|---|---|")
    for name, value in verdict.figures.items():
        print(f"| {name} | {value} |")
    for fault in verdict.faults:
        print(f"\nFAULT: {fault}")
    if chosen.json:
        found = {"run": verdict.name, "figures": verdict.figures, "faults": verdict.faults}
        chosen.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
