"""Speak with the voice of a recording: once, and stored under a name.

python examples/clone_a_voice.py alice.wav [http://localhost:8000]
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import httpx

recording = Path(sys.argv[1])
url = sys.argv[2] if len(sys.argv) > 2 else "http://localhost:8000"

with httpx.Client(base_url=url, timeout=300) as client:
    # Once: the recording travels with the request. With ref_text, what it says, speech would continue from it.
    body = {"input": "This is my voice.", "ref_audio": base64.b64encode(recording.read_bytes()).decode()}
    once = client.post("/v1/audio/speech", json=body | {"response_format": "flac"}).raise_for_status()
    Path("once.flac").write_bytes(once.content)

    # Stored: every replica knows it by its name from now on.
    upload = {"audio_sample": (recording.name, recording.read_bytes())}
    client.post("/v1/audio/voices", data={"name": "example"}, files=upload).raise_for_status()
    body = {"input": "And again.", "voice": "example", "response_format": "flac"}
    Path("stored.flac").write_bytes(client.post("/v1/audio/speech", json=body).raise_for_status().content)
    client.delete("/v1/audio/voices/example").raise_for_status()
