"""Autoscaling where it happens: nodes that come, go and die. Minutes long, and a cluster of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = Path(__file__).with_name("cluster_scenario.py")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_replicas_follow_load_samplers_and_nodes() -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(SCENARIO)], capture_output=True, text=True, timeout=1400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Ray writes there as well
    seen = json.loads(line)
    print(seen)  # noqa: T201
    # The steps themselves are awaited by the scenario; what came of the streams is decided here.
    assert seen["cold start"] == "whole"
    assert seen["replicas after the cold start"] == 1
    assert seen["two samplers"] == [{"whole": 1}, {"whole": 1}]
    assert seen["under load"] == {"whole": 24}, "scaling costs no stream"
    assert seen["while a node was killed"] == {"whole": 24}, "what the lost replica worked on goes on at the others"
    assert seen["after the kill"] == "whole"
