"""A cluster of several nodes on one machine, through load, idleness and the loss of a node. Prints what it saw as JSON.

A program of its own, for the test session has a cluster already. ``gpu`` is a resource of ours that stands in for
GPUs: a node has one, a replica takes one.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 180.0
WIDTH = 8


def prepare(folder: str) -> None:
    """The environment of every process of the cluster. Before Ray is imported."""
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "RAY_AUTH_MODE": "disabled",
        "RAY_TMPDIR": folder,
        # Ten seconds by default: the test would take minutes.
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    }
    sys.path.insert(0, str(ROOT))


class Scenario:
    """The cluster, the application, and what was seen."""

    def __init__(self, folder: str) -> None:
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False},
        )
        ray.init(address=self.cluster.address, log_to_driver=False)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
        self.folder = folder
        self.seen: dict[str, Any] = {}
        self.began_s = time.monotonic()

    def add_node(self) -> Any:
        return self.cluster.add_node(
            num_cpus=1, resources={"gpu": 1}, object_store_memory=100 * 2**20, include_dashboard=False
        )

    def deploy(self) -> None:
        from ray import serve

        from tests.serve.server import fake_factory
        from voxr_ray.app import build_app
        from voxr_ray.config import Settings

        settings = Settings.load(
            {
                "device": "cpu", "model_name": "fake", "min_replicas": 0, "max_replicas": 3, "max_batch": WIDTH,
                "upscale_delay_s": 1, "downscale_delay_s": 3, "scaling_look_back_s": 3, "request_timeout_s": 120,
                "graceful_shutdown_timeout_s": 20, "health_check_period_s": 1,
                "replica_options": {"num_cpus": 0, "resources": {"gpu": 1}}, "voices_dir": f"{self.folder}/voices",
            },
            {},
        )  # fmt: skip
        self.handle = serve.run(build_app(settings, partial(fake_factory, delays={"step": 0.02})), name="app")

    def replicas(self) -> int:
        """Running replicas."""
        from ray import serve

        states = serve.status().applications["app"].deployments["Replica"].replica_states
        return int(states.get("RUNNING", 0))

    def see(self, name: str, condition: Callable[[], bool]) -> None:
        """Wait for something and note when it came."""
        until = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"{name} did not happen; {self.replicas()} replicas; seen: {self.seen}")
            time.sleep(0.1)
        self.note(name, round(time.monotonic() - self.began_s, 1))

    def note(self, name: str, value: Any) -> None:
        self.seen[name] = value
        sys.stderr.write(f"{name}: {value}\n")

    def speak(self, patches: int, seed: int, **fields: Any) -> str:
        """Stream one render: ``whole`` if all of it came, else the class of the error."""
        from voxr_ray.errors import VoxrError
        from voxr_ray.messages import SynthRequest

        request = SynthRequest(
            text="a text long enough to be spoken for a good while " * 6 + f"@patches={patches}@", seed=seed, **fields
        )
        chunks = self.handle.options(stream=True).synthesize_stream.remote(request)
        came = 0
        try:
            for chunk in chunks:
                came += 1
                if chunk.summary is not None:
                    return "whole" if chunk.index == came - 1 and chunk.summary.patches == patches else "wrong"
        except VoxrError as error:
            return type(error).__name__
        finally:
            chunks.cancel()
        return "cut"


class Load:
    """Streams that run beside the scenario."""

    def __init__(self, scenario: Scenario, count: int, patches: int, **fields: Any) -> None:
        self.outcomes: list[str] = []

        def run(seed: int) -> None:
            self.outcomes.append(scenario.speak(patches, seed, **fields))

        self._threads = [threading.Thread(target=run, args=(seed,)) for seed in range(count)]
        for thread in self._threads:
            thread.start()

    def outcome(self) -> dict[str, int]:
        for thread in self._threads:
            thread.join(WAIT_S)
        return {name: self.outcomes.count(name) for name in set(self.outcomes)}


def play(scenario: Scenario) -> None:
    node = scenario.add_node()
    scenario.deploy()
    scenario.see("first replica", lambda: scenario.replicas() == 1)
    scenario.see("idle: none left", lambda: scenario.replicas() == 0)

    scenario.note("cold start", scenario.speak(4, 0))
    scenario.note("replicas after the cold start", scenario.replicas())

    # Two requests, two samplers: far below the target of requests, and yet a batch too many for one replica.
    others = [scenario.add_node(), scenario.add_node()]
    samplers = [Load(scenario, 1, 800), Load(scenario, 1, 800, cfg_value=3.0)]
    scenario.see("held: a second replica", lambda: scenario.replicas() == 2)
    scenario.note("two samplers", [each.outcome() for each in samplers])
    scenario.see("idle again: none left", lambda: scenario.replicas() == 0)

    scenario.cluster.remove_node(others.pop(), allow_graceful=True)
    scenario.cluster.remove_node(others.pop(), allow_graceful=True)
    load = Load(scenario, 3 * WIDTH, 800)  # long enough for nodes that come late
    scenario.see("load: one replica, for there is one node", lambda: scenario.replicas() == 1)
    others = [scenario.add_node(), scenario.add_node()]
    scenario.see("load: three replicas", lambda: scenario.replicas() == 3)
    scenario.note("under load", load.outcome())

    load = Load(scenario, 3 * WIDTH, 700)
    scenario.see("load again: three replicas", lambda: scenario.replicas() == 3)
    scenario.cluster.remove_node(others.pop(), allow_graceful=False)
    scenario.see("node killed: two replicas", lambda: scenario.replicas() == 2)
    scenario.note("after the kill", scenario.speak(4, 1))
    scenario.note("while a node was killed", load.outcome())
    scenario.see("idle at last: none left", lambda: scenario.replicas() == 0)
    scenario.cluster.remove_node(node, allow_graceful=True)


def main() -> None:
    folder = tempfile.mkdtemp(prefix="vc", dir="/tmp")
    prepare(folder)
    scenario = Scenario(folder)
    try:
        play(scenario)
        sys.stdout.write(json.dumps(scenario.seen) + "\n")
    finally:
        import ray
        from ray import serve

        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
        scenario.cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
