"""Send the README's first request to a server that may still be starting, and check the WAV that comes back.

python scripts/first_request.py hello.wav
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import soundfile

URL = "http://127.0.0.1:8000"
REQUEST = {"model": "voxr", "input": "Hello world.", "voice": "default", "response_format": "wav", "seed": 7}


def wait_until_healthy(url: str, timeout_s: float) -> None:
    """Return once the server answers its health check."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"{url} was not healthy within {timeout_s:g} s")
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send the README's first request.")
    parser.add_argument("out", type=Path, help="where to write the WAV")
    parser.add_argument("--url", default=URL)
    parser.add_argument("--timeout-s", type=float, default=180.0, help="how long the server may take to start")
    arguments = parser.parse_args()
    wait_until_healthy(arguments.url, arguments.timeout_s)
    request = urllib.request.Request(
        f"{arguments.url}/v1/audio/speech",
        data=json.dumps(REQUEST).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        headers = dict(answer.headers)
        arguments.out.write_bytes(answer.read())
    samples, rate_hz = soundfile.read(arguments.out, dtype="float32")
    if len(samples) == 0 or not np.any(samples) or headers["x-voxr-seed"] != str(REQUEST["seed"]):
        raise SystemExit(f"the answer is not what was asked for: {len(samples)} samples, headers {headers}")
    print(f"{arguments.out}: {len(samples) / rate_hz:.2f} s at {rate_hz} Hz, seed {headers['x-voxr-seed']}")


if __name__ == "__main__":
    main()
