"""The command as a person starts it: in this process, or in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from voxr_ray.cli.main import cli

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: object, **options: Any) -> Result:
    """Run it here. What it raises beyond its own endings fails the test."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*arguments: object, **options: Any) -> Result:
    """Run it here; it has to do what it is told."""
    result = run(*arguments, **options)
    assert result.exit_code == 0, result.output
    return result


def interrupt_in_part_two(process: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Press Ctrl-C once the second part of a text is under way; gives what it says from then on."""
    seen = b""
    while b"part 2/" not in seen:
        piece = process.stderr.read(1)  # type: ignore[union-attr]
        assert piece, seen
        seen += piece
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=timeout_s)[1].decode()


@contextmanager
def started(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start it in a process of its own; killed in the end if it still runs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VOXR_")}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "voxr_ray.cli", *map(str, arguments)]
    with subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:  # noqa: S603
        try:
            yield process
        finally:
            process.kill()
