"""One Ray cluster and one Serve instance for all tests of the deployments, on loopback and two CPUs."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import Server, fake_factory
from voxr_ray.config import Settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps sockets and logs. Short, for the sockets' sake."""
    folder = Path(tempfile.mkdtemp(prefix="vx", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def serve_url(ray_folder: Path) -> Iterator[str]:
    """Address of a running Serve."""
    import ray
    from ray import serve

    # Workers import voxr_ray and tests.fakes; the raylet hands this environment on to them.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token file in the home folder
    os.environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] = "voxr_ray.serve.proxy:middleware"
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        _system_config={"metrics_report_interval_ms": 500},
        _temp_dir=str(ray_folder),
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


@pytest.fixture(scope="session")
def voices_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where applications keep voices, each in a folder of its name."""
    return tmp_path_factory.mktemp("voices")


@pytest.fixture(scope="session")
def deploy_to_the_end(serve_url: str, ray_folder: Path, voices_folder: Path) -> Callable[..., Server]:
    """As ``deploy``, and the application stays for all tests."""
    from ray import serve

    from voxr_ray.app import build_app

    def start(
        name: str,
        *,
        model: dict[str, Any] | None = None,
        factory: Any = fake_factory,
        replica_drain_s: float | None = None,
        **settings: Any,
    ) -> Server:
        chosen = {"model": "fake/none", "model_name": "fake", "device": "cpu", "graceful_shutdown_timeout_s": 2.0,
                  "replica_options": {"num_cpus": 0.2}, "voices_dir": str(voices_folder / name)} | settings  # fmt: skip
        application = build_app(Settings.load(chosen, {}), partial(factory, **(model or {})))
        if replica_drain_s is not None:  # replicas that go before the routers whose answers they work on
            replicas: Any = application._bound_deployment.init_args[1]
            drain = {"graceful_shutdown_timeout_s": replica_drain_s}
            replicas._bound_deployment = replicas._bound_deployment.options(**drain)
        handle = serve.run(application, name=name, route_prefix=f"/{name}")
        return Server(name, f"{serve_url}/{name}", handle, ray_folder / "session_latest" / "logs" / "serve")

    return start


@pytest.fixture(scope="module")
def deploy(deploy_to_the_end: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    """Deploy an application on the fake model: ``deploy(name, model={...}, max_batch=2)``, or on another one.

    It goes with its module: an idle application takes a tenth of a core for reports and health checks.
    """
    from ray import serve

    names: set[str] = set()

    def run(name: str, **arguments: Any) -> Server:
        names.add(name)
        return deploy_to_the_end(name, **arguments)

    yield run
    for name in sorted(names & set(serve.status().applications)):
        serve.delete(name, _blocking=False)


@pytest.fixture(scope="module")
def start(serve_url: str, ray_folder: Path) -> Iterator[Callable[..., Server]]:
    """Deploy the application as ``serve run voxr_ray:app`` would, with arguments."""
    from ray import serve

    from voxr_ray import app

    names: list[str] = []

    def run(name: str, **args: Any) -> Server:
        application = app({"device": "cpu", "graceful_shutdown_timeout_s": "2"} | args)
        handle = serve.run(application, name=name, route_prefix=f"/{name}")
        names.append(name)
        return Server(name, f"{serve_url}/{name}", handle, ray_folder / "session_latest" / "logs" / "serve")

    yield run
    for name in names:
        serve.delete(name)


@pytest.fixture(scope="session")
def server(deploy_to_the_end: Callable[..., Server]) -> Server:
    """Two slots, two places in the queue, steps of five milliseconds: small enough to fill."""
    return deploy_to_the_end("main", model={"delays": {"step": 0.005}}, max_batch=2, max_queue=2)
