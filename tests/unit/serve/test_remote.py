"""Recordings by address: only from where the operator trusts."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import soundfile

from tests.playback import speech_like
from tests.unit.serve.local import LocalServer

TEXT = "voice @patches=4@"


def wav() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, speech_like(0.5, 16_000), 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


@pytest_asyncio.fixture
async def host() -> AsyncIterator[str]:
    """A web server with a recording, a long one, a redirect, and one that breaks off."""
    bodies = {"/voice.wav": wav(), "/long.wav": bytes(200_000)}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        while (await reader.readline()).strip():
            pass
        if path == "/moved.wav":
            writer.write(b"HTTP/1.1 302 Found\r\nlocation: /voice.wav\r\ncontent-length: 0\r\n\r\n")
        elif path == "/broken.wav":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nRIFF")
        elif path in bodies:
            body = bodies[path]
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()


async def refusal(local: LocalServer, **fields: Any) -> dict[str, str]:
    answer = await local.speak(input=TEXT, **fields)
    assert answer.status_code == 400, answer.text
    assert (await local.counts()).submitted == 0
    error: dict[str, str] = answer.json()["error"]
    return error


ADDRESSES = [
    "http://127.0.0.1/x.wav",
    "https://example.org/x.wav",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "s3://b/k",
]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_nothing_is_trusted_by_default(local: LocalServer, address: str) -> None:
    error = await refusal(local, ref_audio=address)
    assert error["param"] == "ref_audio"
    assert "base64" in error["message"]


async def test_a_trusted_host_is_the_same_as_the_audio_itself(host: str) -> None:
    import base64

    local = LocalServer({"allowed_audio_hosts": [host]})
    inline = base64.b64encode(wav()).decode()
    for field, more in (
        ("ref_audio", {}),
        ("ref_audio", {"ref_text": "said"}),
        ("prompt_audio", {"prompt_text": "said"}),
    ):
        answers = [
            await local.speak(input=TEXT, seed=1, **({field: given} | more))
            for given in (inline, f"http://{host}/voice.wav")
        ]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].content == answers[1].content
    await local.close()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("moved.wav", "status 302"),
        ("missing.wav", "status 404"),
        ("long.wav", "larger than"),
        ("broken.wav", "fetched"),
    ],
)
async def test_what_cannot_be_had_is_said(host: str, path: str, words: str) -> None:
    local = LocalServer({"allowed_audio_hosts": [host], "max_body_bytes": 100_000})
    error = await refusal(local, ref_audio=f"http://{host}/{path}")
    assert words in error["message"]
    assert error["param"] == "ref_audio"
    await local.close()


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/voice.wav",  # another port
        "http://{host}@evil.example/voice.wav",
        "http://evil.example#@{host}/",
        "http://user@{host}/voice.wav",
        "http://{host}.evil.example/voice.wav",
        "http://localhost/voice.wav",
        "http://[::1]/voice.wav",
        "http://127.0.0.1:99999/voice.wav",
        "file://{host}/voice.wav",
        "file:///etc/passwd",
        "ftp://{host}/voice.wav",
        "http://{host}\\@evil.example/voice.wav",
        "http://evil.example\\@{host}/voice.wav",
        "http://evil.example?@{host}/voice.wav",
        "http://evil\t.example/voice.wav",
        "http://",
        "file://[",
    ],
)
async def test_another_host_in_disguise_is_another_host(host: str, address: str) -> None:
    local = LocalServer({"allowed_audio_hosts": [host]})
    assert (await refusal(local, ref_audio=address.format(host=host)))["param"] == "ref_audio"
    await local.close()


async def test_a_host_without_a_port_is_the_usual_port() -> None:
    local = LocalServer({"allowed_audio_hosts": "127.0.0.1"})
    assert "nothing is fetched" in (await refusal(local, ref_audio="http://127.0.0.1:9/x.wav"))["message"]
    error = await refusal(local, prompt_audio="http://127.0.0.1:80/x.wav", prompt_text="said")
    assert "could not be fetched" in error["message"], "trusted, but nobody is there"
    await local.close()


async def test_files_in_a_trusted_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "voices", tmp_path / "other"
    inside.mkdir()
    outside.mkdir()
    (inside / "my voice.wav").write_bytes(wav())
    (outside / "secret.wav").write_bytes(wav())
    (inside / "link.wav").symlink_to(outside / "secret.wav")
    (inside / "text.txt").write_text("no audio")
    (tmp_path / "voices2").mkdir()
    (tmp_path / "voices2" / "x.wav").write_bytes(wav())
    local = LocalServer({"allowed_audio_folders": [str(inside)]})
    for path in (
        f"{outside}/secret.wav",
        f"{inside}/../other/secret.wav",
        f"{inside}/%2e%2e/other/secret.wav",
        f"{inside}/link.wav",
        f"{inside}2/x.wav",
        f"{inside}/a%00b.wav",
        "/no/such/file.wav",
    ):
        assert "outside the folders" in (await refusal(local, ref_audio=f"file://{path}"))["message"]
    for path in (f"{inside}/none.wav", f"{inside}", f"{inside}/text.txt"):
        assert (await refusal(local, ref_audio=f"file://{path}"))["code"] == "bad_audio"
    for prefix in ("file://", "file://localhost"):
        answer = await local.speak(input=TEXT, ref_audio=f"{prefix}{inside}/my%20voice.wav")
        assert answer.status_code == 200
    await local.close()
