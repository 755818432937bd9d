"""A deployed application as a test sees it: its address, its handle, and what its engine says."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.slot_model import FakeSlotModel, make_fake_model
from voxr_ray.config import Settings

WAIT_S = 60.0


def fake_factory(settings: Settings, **arguments: Any) -> FakeSlotModel:
    """What loads the fake model in a replica. Here, because a replica has to import it."""
    return make_fake_model(**arguments)


def idle(snapshot: Any) -> bool:
    """Whether an engine holds no job and no row."""
    load, batch = snapshot.load, snapshot.record.batch
    return bool(load.renders == load.encodes == batch.rows == batch.seatings == batch.waiting == 0)


@dataclass
class Server:
    """One application.

    Attributes:
        name: Its name in Serve.
        url: Where its HTTP surface is.
        handle: Handle of its router.
        logs: Folder of Serve's logs.
    """

    name: str
    url: str
    handle: Any
    logs: Path

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
        return self.wait_for(idle)

    def replica_pids(self, deployment: str = "Replica") -> list[int]:
        """Processes of its replicas, or of another deployment's, found by the title Ray gives them."""
        title = f"ray::ServeReplica:{self.name}:{deployment}".encode()
        pids = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):  # it may have ended meanwhile
                    if (folder / "cmdline").read_bytes().startswith(title):
                        pids.append(int(folder.name))
        return pids

    def error_lines(self) -> list[str]:
        """What the application's processes logged as errors so far."""
        files = self.logs.glob(f"replica_{self.name}_*.log")
        return [line for file in files for line in file.read_text().splitlines() if line.startswith("ERROR")]

    def forgotten_errors(self) -> list[str]:
        """What any process said of exceptions that nobody has asked for."""
        lines = [line for file in self.logs.parent.rglob("*") if file.is_file()
                 for line in file.read_text(errors="replace").splitlines()]  # fmt: skip
        return [line for line in lines if "exception was never retrieved" in line]

    def speak(self, **body: Any) -> httpx.Response:
        """POST a speech request and read the whole answer, which is WAV unless the body says otherwise."""
        return httpx.post(f"{self.url}/v1/audio/speech", json={"response_format": "wav"} | body, timeout=WAIT_S)

    def forget_voice(self, name: str) -> None:
        """Delete a stored voice, if there is one of that name."""
        answer = httpx.delete(f"{self.url}/v1/audio/voices/{name}", timeout=WAIT_S)
        assert answer.status_code in (200, 404), answer.text
