"""How fast the engine is, and how fast beside the official package on the same checkpoint.

Rounds take turns: every number of rows here, one render there, again. Ratios are taken inside a round, and their
medians are what counts on a machine with other work. CPU time is given beside wall-clock time for the same reason: it
hardly notices neighbours. With several thread counts each side is judged by its own best one.

    python -m benchmarks.engine --size default --against voxcpm --oracle-python ../oracle/bin/python
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.checkpoints import SIZES, checkpoint
from benchmarks.tables import report
from benchmarks.workers import Worker
from voxr_ray.cli.tables import median
from voxr_ray.engine.options import EngineOptions

OFFICIAL = Path(__file__).with_name("official_worker.py")
WARM_UP_PATCHES = 6

Found = list[dict[str, float]]
"""What one system, thread count and number of rows gave, round by round."""


def best(found: dict[int, Found]) -> tuple[int, Found]:
    """The thread count with the highest median throughput, and what it gave."""
    threads = max(found, key=lambda count: median(each["patches_per_s"] for each in found[count]))
    return threads, found[threads]


def ratios(ours: Found, theirs: Found, *, name: str, inverse: bool = False) -> float:
    """Median over the rounds of ours over theirs."""
    pairs = ((a[name], b[name]) for a, b in zip(ours, theirs, strict=True))
    return median(b / a if inverse else a / b for a, b in pairs)


def own_command(arguments: argparse.Namespace, path: str, threads: int, rows: list[int]) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.own_worker", path, "--threads", str(threads)]
    command += ["--dtype", arguments.dtype, "--device", arguments.device, "--max-batch", str(max(rows))]
    return [*command, "--pieces-per-cycle", str(arguments.pieces_per_cycle)]


def official_command(arguments: argparse.Namespace, path: str, threads: int) -> list[str]:
    command = [arguments.oracle_python, str(OFFICIAL), path, "--threads", str(threads)]
    return [*command, "--dtype", arguments.official_dtype or arguments.dtype, "--device", arguments.device]


def lines(own: dict[int, dict[int, Found]], official: dict[int, Found]) -> Iterator[dict[str, Any]]:
    """The table, a line for each number of rows."""
    for rows, found in own.items():
        threads, ours = best(found)
        line: dict[str, Any] = {"rows": rows, "threads": threads}
        names = {
            "patches/s": "patches_per_s",
            "audio s/s": "audio_s_per_s",
            "CPU ms/patch": "cpu_ms_per_patch",
            "first audio, ms": "ttfa_ms",
            "step p50, ms": "step_p50_ms",
            "step p95, ms": "step_p95_ms",
            "decode share": "decode_share",
        }
        line |= {title: median(each[name] for each in ours) for title, name in names.items()}
        if official:
            count, theirs = best(official)
            line |= {
                "official patches/s": median(each["patches_per_s"] for each in theirs),
                "its threads": count,
                "throughput ratio": ratios(ours, theirs, name="patches_per_s"),
                "CPU ratio": ratios(ours, theirs, name="cpu_ms_per_patch", inverse=True),
                "first audio ratio": ratios(ours, theirs, name="ttfa_ms", inverse=True),
            }
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the engine, alone or beside the official package.")
    parser.add_argument("--size", choices=SIZES, default="default")
    parser.add_argument("--model", help="a checkpoint folder instead of a size")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--patches", type=int, default=24, help="patches of each stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--pieces-per-cycle",
        type=int,
        default=EngineOptions().pieces_per_cycle,
        help="pieces of seating between two steps",
    )
    parser.add_argument("--against", choices=["voxcpm"], help="take turns with the official package")
    parser.add_argument("--oracle-python", default=sys.executable, help="a Python that has it")
    parser.add_argument("--official-dtype", help="its dtype, if not ours")
    parser.add_argument("--json", type=Path, help="also write the table here")
    arguments = parser.parse_args()
    path = arguments.model or str(checkpoint(arguments.size))
    own: dict[int, dict[int, Found]] = {rows: defaultdict(list) for rows in arguments.rows}
    official: dict[int, Found] = defaultdict(list)
    with ExitStack() as stack:
        ours = {
            threads: stack.enter_context(Worker(own_command(arguments, path, threads, arguments.rows)))
            for threads in arguments.threads
        }
        theirs = {
            threads: stack.enter_context(Worker(official_command(arguments, path, threads)))
            for threads in (arguments.threads if arguments.against else [])
        }
        for worker in ours.values():
            for rows in arguments.rows:
                worker.ask(rows=rows, patches=WARM_UP_PATCHES)
        for worker in theirs.values():
            worker.ask(patches=WARM_UP_PATCHES)
        turns = (len(arguments.rows) * len(ours) + len(theirs)) * arguments.rounds
        with tqdm(total=turns, unit="turn", disable=None) as bar:
            for _ in range(arguments.rounds):
                for threads, worker in theirs.items():
                    official[threads].append(worker.ask(patches=arguments.patches))
                    bar.update()
                for threads, worker in ours.items():
                    for rows in arguments.rows:
                        own[rows][threads].append(worker.ask(rows=rows, patches=arguments.patches))
                        bar.update()
        loads = {"own_load_s": [w.ready["load_s"] for w in ours.values()]}
    title = f"{arguments.model or arguments.size}, {arguments.dtype}, {arguments.rounds} rounds of "
    title += f"{arguments.patches} patches"
    report(title, list(lines(own, official)), arguments.json, raw={"own": own, "official": official}, **loads)


if __name__ == "__main__":
    main()
