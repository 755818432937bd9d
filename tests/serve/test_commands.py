"""``serve run`` as an operator meets it. Its builder runs before any cluster is started, so these need none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["nonsense=1"], {}, "'nonsense' is no setting"),
        (["max_batch=none"], {}, "setting max_batch = 'none'"),
        ([], {"VOXR_NONSENSE": "1"}, "VOXR_NONSENSE is no setting"),
        (["max_batch=8", "max_queue=8", "max_ongoing_requests=9"], {}, "max_ongoing_requests = 9 is below"),
        (["model=/no/such/folder", "device=cpu"], {}, "/no/such/folder"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_the_command_fails(
    arguments: list[str], environment: dict[str, str], words: str
) -> None:
    command = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()", "run", "voxr_ray:app", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VOXR_")}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(  # noqa: S603
        command, env=clean | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    (line,) = [
        line for line in done.stderr.splitlines() if line.strip() and " INFO " not in line and "\tINFO" not in line
    ]
    assert line.startswith("Error: ")
    assert words in line
