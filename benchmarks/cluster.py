"""A Ray cluster and an application for as long as a benchmark runs, on free ports and apart from any other."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxr_ray.app import build_app
from voxr_ray.config import Settings
from voxr_ray.engine.model import SlotModel

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Served:
    """A running application.

    Attributes:
        url: Base address of its HTTP surface, without ``/v1``.
        router: Handle of the router.
        replica: Handle of the replicas.
    """

    url: str
    router: Any
    replica: Any


@contextmanager
def serving(settings: Settings, factory: Callable[[Settings], SlotModel], *, cpus: int = 4) -> Iterator[Served]:
    """Start a cluster, deploy the application, and take both down again.

    Args:
        settings: Validated settings; ``device`` names a device.
        factory: Loads the model in a replica; must pickle.
        cpus: What Ray is to believe this machine has.
    """
    import ray
    from ray import serve

    folder = tempfile.mkdtemp(prefix="vxb", dir="/tmp")  # short: sockets lie there
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(
        address="local",
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        _temp_dir=folder,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        router = serve.run(build_app(settings, factory), name="bench", route_prefix="/")
        yield Served(f"http://127.0.0.1:{port}", router, serve.get_deployment_handle("Replica", "bench"))
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
