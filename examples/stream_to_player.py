"""Hear a text while it is made; without a player the audio goes into a file.

python examples/stream_to_player.py [http://localhost:8000]
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import httpx

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
body = {"input": "The first words are heard before the last are made.", "response_format": "pcm", "stream": True}

with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=300) as answer:
    if answer.status_code != 200:
        sys.exit(answer.read().decode())
    rate = answer.headers["x-voxr-sample-rate"]
    if shutil.which("aplay"):
        command = ["aplay", "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", rate]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as player:
            for piece in answer.iter_raw():
                player.stdin.write(piece)
    else:
        with open("streamed.pcm", "wb") as file:
            for piece in answer.iter_raw():
                file.write(piece)
        print(f"streamed.pcm: 16-bit mono at {rate} Hz")
