"""A deployed application as a test sees it: its address, its handle, and what its engine says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

WAIT_S = 60.0


@dataclass
class Server:
    """One application.

    Attributes:
        name: Its name in Serve.
        url: Where its HTTP surface is.
        handle: Handle of its router.
    """

    name: str
    url: str
    handle: Any

    @property
    def replica(self) -> Any:
        """Handle of its replica deployment."""
        from ray import serve

        return serve.get_deployment_handle("Replica", self.name)

    def snapshot(self) -> Any:
        """What the engine says now (with one replica)."""
        return self.replica.engine_record.remote().result()

    def wait_for(self, condition: Callable[[Any], bool]) -> Any:
        """The first snapshot that meets ``condition``; fails with the last one."""
        until = time.monotonic() + WAIT_S
        while not condition(snapshot := self.snapshot()):
            if time.monotonic() > until:
                raise AssertionError(f"the engine never got there: {snapshot}")
            time.sleep(0.01)
        return snapshot

    def wait_until_idle(self) -> Any:
        """The first snapshot without a job or a row."""
        return self.wait_for(
            lambda s: s.load.inside == 0 and s.record.batch.rows == 0 and s.record.batch.waiting == 0
        )

    def speak(self, **body: Any) -> httpx.Response:
        """POST a speech request and read the whole answer."""
        return httpx.post(f"{self.url}/v1/audio/speech", json=body, timeout=WAIT_S)
