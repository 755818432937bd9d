"""An application on a Ray of its own, and what its processes hold."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_TITLES = {
    "proxy": re.compile(rb"ray::ProxyActor"),
    "router": re.compile(rb"ray::ServeReplica:[^:]*:Router"),
    "replica": re.compile(rb"ray::ServeReplica:[^:]*:Replica"),
    "library": re.compile(rb"ray::ServeReplica:[^:]*:Library"),
}
_RAYLET = re.compile(rb"^\S*raylet/raylet")


@dataclass
class Server:
    """A running application.

    Attributes:
        url: Where its HTTP surface is.
        replica: Handle of its replica deployment.
        fake: Whether the model is the tests' fake one.
        width: Slots.
        queue: Places in the queue.
        folder: Ray's folder, by which its processes are told from those of other clusters.
    """

    url: str
    replica: Any
    fake: bool
    width: int
    queue: int
    folder: Path

    @property
    def speech(self) -> str:
        """Address of the speech endpoint."""
        return f"{self.url}/v1/audio/speech"

    async def snapshot(self) -> Any:
        """What the engine says now."""
        return await asyncio.to_thread(lambda: self.replica.engine_record.remote().result())

    def memory(self) -> dict[str, int]:
        """Private bytes of each kind of process."""
        titles: dict[Path, bytes] = {}
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                with contextlib.suppress(OSError):  # it may have ended meanwhile
                    titles[process] = (process / "cmdline").read_bytes()
        raylets = {each.name for each, title in titles.items() if _RAYLET.search(title) and self._ours(title)}
        sizes: dict[str, int] = {}
        for process, title in titles.items():
            name = next((name for name, pattern in _TITLES.items() if pattern.match(title)), None)
            if name is not None:
                with contextlib.suppress(OSError):
                    if _parent(process) in raylets:
                        sizes[name] = sizes.get(name, 0) + _private_bytes(process)
        return sizes

    def _ours(self, title: bytes) -> bool:
        return str(self.folder).encode() in title


def _parent(process: Path) -> str:
    (parent,) = re.findall(r"^PPid:\s+(\d+)$", (process / "status").read_text(), re.MULTILINE)
    return str(parent)


def _private_bytes(process: Path) -> int:
    rollup = (process / "smaps_rollup").read_text()
    return sum(int(size) * 1024 for size in re.findall(r"^Private_\w+:\s+(\d+) kB", rollup, re.MULTILINE))


@contextlib.contextmanager
def serving(
    folder: Path, *, fake: bool, width: int, queue: int, step_s: float, samples_per_patch: int
) -> Iterator[Server]:
    """Start everything, and stop it.

    Args:
        folder: For Ray's files and the voices.
        fake: Whether to use the tests' model, which computes nothing.
        width: Slots.
        queue: Places in the queue.
        step_s: Seconds of the fake model's step.
        samples_per_patch: Length of the fake model's patches.
    """
    import ray
    from ray import serve

    from tests.serve.server import fake_factory
    from voxr_ray.app import build_app, check_model, load_checkpoint
    from voxr_ray.config import Settings

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token file in the home folder
    ray.init(
        address="local", num_cpus=4, include_dashboard=False, object_store_memory=200 * 2**20, log_to_driver=False,
        _temp_dir=str(folder),
    )  # fmt: skip
    try:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        chosen = {
            "device": "cpu", "max_batch": width, "max_queue": queue, "voices_dir": str(folder / "voices"),
            "replica_options": {"num_cpus": 0}, "graceful_shutdown_timeout_s": 2.0,
        }  # fmt: skip
        settings = Settings.load(chosen | ({"model_name": "fake"} if fake else {}), {})
        fakes = partial(fake_factory, delays={"step": step_s}, samples_per_patch=samples_per_patch)
        factory = fakes if fake else load_checkpoint
        serve.run(build_app(settings if fake else check_model(settings), factory), name="soak", route_prefix="/")
        replica = serve.get_deployment_handle("Replica", "soak")
        yield Server(f"http://127.0.0.1:{port}", replica, fake, width, queue, folder)
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
