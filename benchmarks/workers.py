"""Processes that measure on command, so that what is compared can take turns without being loaded again."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self


class Worker:
    """A child process that answers each line of JSON with one.

    Its first line says that it is ready; what it prints to the standard error goes to ours.

    Args:
        command: What to run.
        environment: Variables on top of ours.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.ready = self._read()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        if self._process.stdin is None:
            raise RuntimeError("the worker has no input")
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The end of its input ends the worker.
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"a measuring process ended with {self._process.wait()}: {self._process.args}")
        answer: dict[str, Any] = json.loads(line)
        return answer
