"""What listeners get from a server: first audio, pace, gaps; over HTTP and over handles, under two kinds of load.

Closed loop: so many users, each asking again when the answer is complete. Open loop: requests at a rate, whatever
became of those before. Every answer is played by a simulated player that starts with the first audio.

    python -m benchmarks.serve --users 1 16                        # its own server on the default checkpoint
    python -m benchmarks.serve --users 16 --against voxcpm --oracle-python ../oracle/bin/python
    python -m benchmarks.serve --url http://peer:8000 --fields '{"model": "tts", "voice": "alloy"}' --rate 4
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.checkpoints import SIZES, checkpoint
from benchmarks.clients import HandleSpeaker
from benchmarks.engine import OFFICIAL
from benchmarks.tables import report
from benchmarks.workers import Worker
from voxr_ray.cli.loads import TEXTS, HttpSpeaker, Speak, closed_loop, open_loop, shared_fields, summary
from voxr_ray.cli.tables import median


def requests(arguments: argparse.Namespace, count: int, seed: int) -> list[dict[str, Any]]:
    """Requests as HTTP takes them, samplers in turn."""
    made = []
    for index in range(count):
        fields: dict[str, Any] = {"input": TEXTS[index % len(TEXTS)], "seed": seed + index}
        if arguments.patches:
            fields |= {
                "min_len": arguments.patches - 2,
                "max_len": arguments.patches,
                "retry_badcase_ratio_threshold": 100.0,
            }
        if arguments.samplers:
            cfg, steps = arguments.samplers[index % len(arguments.samplers)].split(":")
            fields |= {"cfg_value": float(cfg), "inference_timesteps": int(steps)}
        if arguments.reference:
            fields["ref_audio"] = base64.b64encode(arguments.reference.read_bytes()).decode()
        if arguments.plain:
            fields = {"input": fields["input"]}
        made.append(fields)
    return made


async def load(speak: Speak, arguments: argparse.Namespace, users: int, seed: int, told: Any) -> dict[str, Any]:
    """One turn: the whole load of one kind."""
    start_s = time.perf_counter()
    if arguments.rate:
        drawn = random.Random(seed)
        gaps_s = [drawn.expovariate(arguments.rate) for _ in range(arguments.requests)]
        calls = await open_loop(speak, requests(arguments, arguments.requests, seed), gaps_s, told)
    else:
        calls = await closed_loop(speak, requests(arguments, users * arguments.requests, seed), users, told)
    for error in sorted({call.error for call in calls if call.error}):
        print(error, file=sys.stderr)
    return summary(calls, time.perf_counter() - start_s)


def merged(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The median over the rounds; counts of failures and underruns are summed."""
    summed = ("requests", "failed", "underruns")
    return {
        name: sum(line[name] for line in lines) if name in summed else median(line[name] for line in lines)
        for name in lines[0]
    }


async def measure(
    speakers: dict[str, Speak], workers: dict[str, Worker], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """All turns, and a line for each way and load."""
    loads = [0] if arguments.rate else arguments.users
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    compared: dict[tuple[str, int, str], list[float]] = {}
    per_turn = sum(arguments.requests if arguments.rate else users * arguments.requests for users in loads)
    with tqdm(total=per_turn * len(speakers) * arguments.rounds, unit="request", disable=None) as bar:
        for speak in speakers.values():  # connections, and whatever a first request makes
            await closed_loop(speak, requests(arguments, 1, 0), 1, lambda: None)
        for turn in range(arguments.rounds):
            for users in loads:
                beside: dict[str, float] = {}
                if "engine" in workers:
                    asked = workers["engine"].ask(rows=users, patches=arguments.patches)
                    beside["engine"] = asked["audio_s_per_s"]
                if "official" in workers:
                    asked = workers["official"].ask(patches=arguments.patches, first=False)
                    beside["official"] = asked["audio_s_per_s"]
                for name, speak in speakers.items():
                    line = await load(speak, arguments, users, 1000 * turn, bar.update)
                    found.setdefault((name, users), []).append(line)
                    for other, audio_s in beside.items():
                        compared.setdefault((name, users, other), []).append(line["audio s/s"] / audio_s)
    lines = []
    for (name, users), rounds in found.items():
        line = {"way": name, "load": f"{arguments.rate:g}/s" if arguments.rate else f"{users} users"}
        line |= merged(rounds)
        line |= {f"× {other}": median(compared[(name, users, other)]) for other in workers}
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what listeners get from a server.")
    parser.add_argument("--url", help="an OpenAI-compatible server; without it, one of our own is started")
    parser.add_argument("--key", default="none", help="its API key")
    parser.add_argument("--rate-hz", type=int, default=24_000, help="rate of its samples, if its headers are silent")
    parser.add_argument("--fields", type=shared_fields, default={}, help="JSON object that every HTTP request carries")
    parser.add_argument("--plain", action="store_true", help="send no fields of this project's own")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ways", nargs="+", choices=["http", "handle"], default=["http", "handle"])
    parser.add_argument("--users", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--requests", type=int, default=2, help="of each user; with --rate, in all")
    parser.add_argument("--rate", type=float, help="open loop: requests a second")
    parser.add_argument("--patches", type=int, default=24, help="length of every answer; 0 lets the model decide")
    parser.add_argument("--samplers", nargs="+", help="cfg:steps, in turn, such as 2.0:10 3.0:6")
    parser.add_argument("--reference", type=Path, help="a recording: every request clones it (HTTP only)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", action="store_true", help="take turns with the bare engine")
    parser.add_argument("--against", choices=["voxcpm"], help="take turns with the official package")
    parser.add_argument("--oracle-python", default=sys.executable, help="a Python that has it")
    parser.add_argument("--json", type=Path, help="also write the table here")
    arguments = parser.parse_args()
    if (arguments.engine or arguments.against) and (arguments.rate or not arguments.patches):
        parser.error("a comparison needs a closed loop and answers of a fixed length")
    if "handle" in arguments.ways and (arguments.reference or arguments.url):
        arguments.ways = ["http"]
    with ExitStack() as stack:
        path = str(checkpoint(arguments.size))
        workers: dict[str, Worker] = {}
        if arguments.engine:
            command = [sys.executable, "-m", "benchmarks.own_worker", path, "--threads", str(arguments.threads)]
            workers["engine"] = stack.enter_context(Worker([*command, "--max-batch", str(max(arguments.users))]))
        if arguments.against:
            command = [arguments.oracle_python, str(OFFICIAL), path, "--threads", str(arguments.threads)]
            workers["official"] = stack.enter_context(Worker(command))
        url, router = arguments.url, None
        if url is None:
            from benchmarks.cluster import serving
            from voxr_ray.app import load_checkpoint
            from voxr_ray.config import Settings

            given = {"model": path, "device": "cpu", "threads": arguments.threads, "max_batch": max(arguments.users)}
            served = stack.enter_context(serving(Settings.load(given, {}), load_checkpoint))
            url, router = served.url, served.router

        async def run() -> list[dict[str, Any]]:
            speakers: dict[str, Speak] = {}
            http = HttpSpeaker(url, arguments.fields, arguments.rate_hz, arguments.key)
            if "http" in arguments.ways:
                speakers["http"] = http
            if "handle" in arguments.ways and router is not None:
                speakers["handle"] = HandleSpeaker(router, {})
            try:
                return await measure(speakers, workers, arguments)
            finally:
                await http.close()

        lines = asyncio.run(run())
    title = f"{arguments.url or arguments.size}, {arguments.rounds} rounds"
    report(title, lines, arguments.json, options={k: str(v) for k, v in vars(arguments).items() if k != "key"})


if __name__ == "__main__":
    main()
