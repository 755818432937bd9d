"""Formats, rates and events over HTTP, without Ray."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import numpy as np
import pytest
import soxr

from tests.fakes.solo import render_alone
from tests.playback import MAGIC, MEDIA_TYPES, decode
from tests.unit.serve.local import LocalServer
from voxr_ray.audio import pcm16_bytes, to_pcm16
from voxr_ray.messages import SynthRequest
from voxr_ray.serve.responses import StreamBroken

TEXT = "the same audio @patches=60@"
LOSSLESS = ("flac", "wav", "pcm")


def solo(text: str = TEXT, seed: int = 9) -> np.ndarray:
    return render_alone(SynthRequest(text=text, seed=seed)).samples


def events(content: bytes) -> list[dict[str, Any]]:
    """The data of a stream of events, which must hold nothing else."""
    found = []
    for block in content.decode().removesuffix("\n\n").split("\n\n"):
        *names, data = block.split("\n")
        assert names in ([], ["event: error"])
        assert data.startswith("data: ")
        found.append(json.loads(data.removeprefix("data: ")))
    return found


@pytest.mark.parametrize("audio_format", MEDIA_TYPES)
async def test_a_format_is_the_same_file_whole_streamed_and_in_events(local: LocalServer, audio_format: str) -> None:
    body = {"input": TEXT, "seed": 9, "response_format": audio_format}
    whole = await local.speak(**body)
    streamed = await local.speak(**body, stream=True)
    told = await local.speak(**body, stream_format="sse")
    assert int(whole.headers["content-length"]) == len(whole.content)
    for answer in (whole, streamed, told):
        assert answer.status_code == 200
        assert answer.headers["x-voxr-sample-rate"] == "48000"
        assert answer.headers["x-voxr-encoding"] == ("s16le" if audio_format in ("wav", "pcm") else audio_format)
    for answer in (whole, streamed):
        assert answer.headers["content-type"] == MEDIA_TYPES[audio_format]
        assert answer.content.startswith(MAGIC[audio_format])
    assert told.headers["content-type"].split(";")[0] == "text/event-stream"
    *deltas, done = events(told.content)
    assert all(set(event) == {"type", "audio"} and event["type"] == "speech.audio.delta" for event in deltas)
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == streamed.content
    tokens = len(TEXT.encode())
    usage = {"input_tokens": tokens, "output_tokens": 60, "total_tokens": tokens + 60}
    assert done == {"type": "speech.audio.done", "usage": usage}
    if audio_format in ("pcm", "opus", "aac"):
        assert whole.content == streamed.content
    heard = [decode(answer.content, audio_format, 48_000)[0] for answer in (whole, streamed)]
    if audio_format in LOSSLESS:
        for samples in heard:
            np.testing.assert_array_equal(to_pcm16(samples), to_pcm16(solo()))
    elif audio_format == "mp3":  # only a whole file can say how much silence its codec added at both ends
        assert len(heard[0]) == len(solo()) < len(heard[1])
    else:
        np.testing.assert_array_equal(*heard)


async def test_mp3_is_the_default(local: LocalServer) -> None:
    body = {"input": TEXT, "seed": 9}
    plain = await local.client.post("/v1/audio/speech", json=body)
    assert plain.headers["content-type"] == "audio/mpeg"
    assert plain.content == (await local.speak(**body, response_format="mp3")).content


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 24_000, 44_100, 48_000])
async def test_the_callers_rate(local: LocalServer, rate: int) -> None:
    body = {"input": TEXT, "seed": 9, "response_format": "pcm", "sample_rate": rate}
    whole, streamed = await local.speak(**body), await local.speak(**body, stream=True)
    expected = pcm16_bytes(soxr.resample(solo(), 48_000, rate, quality="HQ"))
    assert whole.content == streamed.content == expected
    for answer in (whole, streamed):
        assert answer.headers["x-voxr-sample-rate"] == str(rate)
    assert whole.headers["x-voxr-audio-seconds"] == "0.600"
    wav = await local.speak(**(body | {"response_format": "wav"}))
    assert decode(wav.content, "wav", 0)[1] == rate


async def test_a_models_rate_that_opus_cannot_carry_is_raised() -> None:
    local = LocalServer(sample_rate_hz=44_100)
    answer = await local.speak(input=TEXT, response_format="opus")
    assert answer.headers["x-voxr-sample-rate"] == "48000"
    answer = await local.speak(input=TEXT, response_format="wav", stream=True)
    assert answer.headers["x-voxr-sample-rate"] == "44100"
    await local.close()


@pytest.mark.parametrize("audio_format", MEDIA_TYPES)
@pytest.mark.parametrize("fault", ["@fail=prefill@", "@audio=none@"])
async def test_no_format_begins_before_there_is_audio(local: LocalServer, audio_format: str, fault: str) -> None:
    for way in ({}, {"stream": True}, {"stream_format": "sse"}):
        answer = await local.speak(input=f"text {fault}", response_format=audio_format, **way)
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "application/json"


async def test_a_failure_on_the_way_is_an_event_and_a_broken_connection(
    local: LocalServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("voxr_ray"), "propagate", True)
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    body = {"input": "text @fail=decode:30@ @patches=60@", "response_format": "pcm", "stream_format": "sse"}
    given = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

    async def receive() -> Any:
        return next(given)

    scope = {"type": "http", "method": "POST", "path": "/v1/audio/speech", "query_string": b"", "root_path": "",
             "headers": [(b"content-type", b"application/json"), (b"x-request-id", b"told-1")]}  # fmt: skip
    with pytest.raises(StreamBroken):
        await local.app(scope, receive, send)
    *deltas, last = events(b"".join(sent))
    assert deltas
    assert last["type"] == "error"
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["code"] == "internal_error"
    assert any("request told-1 broke off after its first byte" in line for line in caplog.messages)


async def test_other_names_of_the_model() -> None:
    local = LocalServer({"model_aliases": "tts-1, gpt-4o-mini-tts"})
    assert (await local.speak(input="hi", model="tts-1")).headers["x-voxr-model"] == "fake"
    refused = await local.speak(input="hi", model="tts-2")
    assert refused.status_code == 404
    assert "'fake', 'tts-1', 'gpt-4o-mini-tts'" in refused.json()["error"]["message"]
    listed = (await local.client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["fake", "tts-1", "gpt-4o-mini-tts"]
    assert (await local.client.get("/v1/models/tts-1")).json()["id"] == "tts-1"
    await local.close()


async def test_long_pieces_are_encoded_off_the_loop() -> None:
    """A second of this model's audio in one chunk: whole and streamed it is still the same."""
    local = LocalServer({"stream_chunk_patches": 100, "first_chunk_patches": 100}, samples_per_patch=4_800)
    body = {"input": "a longer text than the others are @patches=150@", "seed": 1, "response_format": "flac"}
    whole, streamed = await local.speak(**body), await local.speak(**body, stream=True)
    one, other = (decode(answer.content, "flac", 0)[0] for answer in (whole, streamed))
    np.testing.assert_array_equal(one, other)
    assert len(one) == 150 * 4_800
    await local.close()
