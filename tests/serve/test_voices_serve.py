"""Named voices and long texts over real actors: every router at once, after a restart, streamed or not."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.serve.server import WAIT_S, Server
from tests.unit.serve.voice_files import recording
from voxr_ray.audio import pcm16_bytes
from voxr_ray.errors import InvalidRequest, UnknownVoice, VoiceExists
from voxr_ray.messages import Reference, SynthRequest

TEXT = "spoken @patches=4@"
LONG = "".join(f"This is sentence number {n}, and it is spoken with @patches=9@ care. " for n in range(14))


@pytest.fixture(scope="module")
def voiced(deploy: Any) -> Server:
    """Two replicas behind two routers."""
    server: Server = deploy("voiced", num_replicas=2, router_replicas=2, max_batch=4)
    return server


def upload(server: Server, name: str, audio: bytes, **texts: str) -> httpx.Response:
    files = {"audio_sample": ("a.wav", audio)}
    return httpx.post(f"{server.url}/v1/audio/voices", data={"name": name} | texts, files=files, timeout=WAIT_S)


def names(server: Server) -> list[str]:
    return [voice["id"] for voice in httpx.get(f"{server.url}/v1/audio/voices", timeout=WAIT_S).json()["voices"]]


def with_field(server: Server, audio: bytes, **fields: Any) -> bytes:
    return server.speak(input=TEXT, seed=1, ref_audio=base64.b64encode(audio).decode(), **fields).content


def test_upload_speak_delete(voiced: Server) -> None:
    """R7, R8: on every router and replica at once, and gone everywhere at once."""
    for seed in (1, 2):
        answer = upload(voiced, "alice", recording(seed))
        assert answer.status_code == 200, answer.text
        assert answer.json()["object"] == "audio.voice"
        expected = with_field(voiced, recording(seed))
        with ThreadPoolExecutor(8) as pool:
            spoken = list(pool.map(lambda _: voiced.speak(input=TEXT, seed=1, voice="alice").content, range(16)))
        assert set(spoken) == {expected}
        assert upload(voiced, "Alice", recording(3)).status_code == 409
        assert httpx.delete(f"{voiced.url}/v1/audio/voices/alice", timeout=WAIT_S).status_code == 200
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: voiced.speak(input=TEXT, voice="alice"), range(16)))
        assert {answer.status_code for answer in answers} == {404}
        assert {answer.json()["error"]["code"] for answer in answers} == {"voice_not_found"}


def test_twenty_uploads_at_once_all_survive(voiced: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: upload(voiced, f"crowd {n}", recording(n)), range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert {f"crowd {n}" for n in range(20)} <= set(names(voiced))
    for n in (0, 19):
        answer = voiced.speak(input=TEXT, seed=1, voice=f"crowd {n}")
        assert answer.content == with_field(voiced, recording(n))


def test_the_largest_upload_arrives(voiced: Server) -> None:
    """It is more than one message between actors holds."""
    wide = np.random.default_rng(0).uniform(-0.3, 0.3, (1_200_000, 2))
    file = io.BytesIO()
    soundfile.write(file, wide, 44_100, format="WAV", subtype="FLOAT")
    assert 9 * 2**20 < len(file.getvalue()) < 10 * 2**20
    assert upload(voiced, "large", file.getvalue()).status_code == 200
    assert voiced.speak(input=TEXT, seed=1, voice="large").content == with_field(voiced, file.getvalue())


@pytest.mark.slow
def test_a_restart_keeps_the_voices(deploy: Any, voices_folder: Path) -> None:
    from ray import serve

    first: Server = deploy("again")
    card = upload(first, "alice", recording(5), ref_text="said", consent="yes").json()
    before = first.speak(input=TEXT, seed=1, voice="alice").content
    serve.delete("again")
    second: Server = deploy("again")
    listed = httpx.get(f"{second.url}/v1/audio/voices", timeout=WAIT_S).json()["voices"]
    assert listed[1] == card
    assert second.speak(input=TEXT, seed=1, voice="alice").content == before
    assert before == with_field(second, recording(5), ref_text="said")
    serve.delete("again")


def test_handles(voiced: Server) -> None:
    handle = voiced.handle
    info = handle.add_voice.remote("by handle", recording(6), "said", "yes").result(timeout_s=WAIT_S)
    assert (info.name, info.has_text) == ("by handle", True)
    assert "by handle" in handle.voices.remote().result(timeout_s=WAIT_S)
    voice = handle.voice.remote("By Handle").result(timeout_s=WAIT_S)
    assert voice.text == "said"
    reference = Reference(voice.recording.digest, voice.recording.clip)
    result = handle.synthesize.remote(SynthRequest(text=TEXT, seed=1, reference=reference)).result(timeout_s=WAIT_S)
    assert pcm16_bytes(result.samples) == with_field(voiced, recording(6))[44:]
    with pytest.raises(VoiceExists):
        handle.add_voice.remote("by handle", recording(7)).result(timeout_s=WAIT_S)
    with pytest.raises(InvalidRequest):
        handle.add_voice.remote("../by handle", recording(7)).result(timeout_s=WAIT_S)
    handle.delete_voice.remote("by handle").result(timeout_s=WAIT_S)
    with pytest.raises(UnknownVoice):
        handle.voice.remote("by handle").result(timeout_s=WAIT_S)


def test_a_long_text_streamed_equals_buffered(voiced: Server) -> None:
    body = {"input": LONG, "seed": 5, "response_format": "wav"}
    whole = voiced.speak(**body)
    assert whole.status_code == 200, whole.text
    with httpx.stream("POST", f"{voiced.url}/v1/audio/speech", json=body | {"stream": True}, timeout=WAIT_S) as answer:
        parts = list(answer.iter_raw())
    streamed = b"".join(parts)
    assert len(parts) > 3
    assert streamed[44:] == whole.content[44:]
    assert streamed.count(b"RIFF") == whole.content.count(b"RIFF") == 1
    result = voiced.handle.synthesize.remote(SynthRequest(text=LONG, seed=5)).result(timeout_s=WAIT_S)
    assert pcm16_bytes(result.samples) == whole.content[44:]


def test_one_who_leaves_a_long_text_stops_it(server: Server) -> None:
    server.wait_until_idle()
    before = server.snapshot().record.counts
    text = "It never ends and never ends @patches=never@ at all. " * 20
    body = {"input": text, "stream": True, "response_format": "pcm"}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=WAIT_S) as answer:
        assert next(answer.iter_raw())
    after = server.wait_until_idle().record.counts
    assert after.cancelled == before.cancelled + 1
    assert after.submitted == before.submitted + 1
