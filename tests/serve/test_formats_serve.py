"""Every format through Serve's real proxy, by the unmodified OpenAI client, heard by decoders that are not ours."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soxr

from tests.fakes.solo import render_alone
from tests.fakes.voice import make_fake_voice
from tests.playback import MAGIC, MEDIA_TYPES, best_match, decode, speech_like
from tests.serve.server import WAIT_S, Server
from voxr_ray.audio import pcm16_bytes, to_pcm16
from voxr_ray.messages import SynthRequest

LOSSLESS = ("flac", "wav", "pcm")
TEXT = "a text of which something can be heard @patches=150@"
PATCH = 480


@pytest.fixture(scope="module")
def voice(deploy: Any) -> Server:
    """A model whose answers sound like a voice."""
    server: Server = deploy("voice", factory=make_fake_voice, max_batch=4, api_keys="key-one", model_aliases="tts-1")
    return server


@pytest.fixture(scope="module")
def client(voice: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{voice.url}/v1", api_key="key-one", max_retries=0)


def spoken() -> np.ndarray:
    return speech_like(2.0, 48_000)[: 150 * PATCH]


def check(data: bytes, audio_format: str, rate_hz: int = 48_000) -> None:
    """A file of a format is what was spoken: exactly, or as far as its codec goes."""
    assert data.startswith(MAGIC[audio_format])
    played, rate = decode(data, audio_format, rate_hz)
    expected = soxr.resample(spoken(), 48_000, rate, quality="HQ")
    if audio_format in LOSSLESS:
        np.testing.assert_array_equal(to_pcm16(played), to_pcm16(expected))
    else:
        correlation, _ = best_match(expected, played)
        assert correlation > 0.98
        assert len(played) >= len(expected)


@pytest.mark.parametrize("audio_format", MEDIA_TYPES)
class TestOpenAIClient:
    def test_create(self, client: openai.OpenAI, audio_format: Any) -> None:
        answer = client.audio.speech.create(model="tts-1", voice="default", input=TEXT, response_format=audio_format)
        assert answer.response.headers["content-type"] == MEDIA_TYPES[audio_format]
        check(answer.content, audio_format)

    def test_with_streaming_response(self, client: openai.OpenAI, audio_format: Any) -> None:
        with client.audio.speech.with_streaming_response.create(
            model="fake",
            voice="default",
            input=TEXT,
            response_format=audio_format,
            stream_format="audio",
            extra_body={"stream": True},
        ) as answer:
            assert answer.headers["content-type"] == MEDIA_TYPES[audio_format]
            check(b"".join(answer.iter_bytes()), audio_format)

    def test_events(self, client: openai.OpenAI, audio_format: Any) -> None:
        with client.audio.speech.with_streaming_response.create(
            model="fake", voice="default", input=TEXT, response_format=audio_format, stream_format="sse"
        ) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        told = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert {event["type"] for event in told[:-1]} == {"speech.audio.delta"}
        assert len(told) > 3
        assert told[-1]["type"] == "speech.audio.done"
        assert told[-1]["usage"]["output_tokens"] == 150
        check(b"".join(base64.b64decode(event["audio"]) for event in told[:-1]), audio_format)

    def test_another_rate(self, client: openai.OpenAI, audio_format: Any) -> None:
        answer = client.audio.speech.create(
            model="fake", voice="default", input=TEXT, response_format=audio_format, extra_body={"sample_rate": 24_000}
        )
        assert answer.response.headers["x-voxr-sample-rate"] == "24000"
        check(answer.content, audio_format, 24_000)


def test_a_wrong_key_is_the_clients_authentication_error(voice: Server) -> None:
    stranger = openai.OpenAI(base_url=f"{voice.url}/v1", api_key="key-two", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        stranger.audio.speech.create(model="fake", voice="default", input="hi")
    assert caught.value.code == "invalid_api_key"
    assert httpx.get(f"{voice.url}/health", timeout=WAIT_S).status_code == 200


def test_events_of_a_failure_say_why_and_break(server: Server) -> None:
    body = {"input": "text @fail=decode:20@ @patches=40@", "stream_format": "sse", "response_format": "pcm"}
    received = b""
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=WAIT_S) as answer:
        assert answer.status_code == 200
        try:
            for part in answer.iter_raw():
                received += part
        except httpx.RemoteProtocolError:
            pass
        else:
            raise AssertionError("the stream ended as if it were complete")
    event, data = received.decode().removesuffix("\n\n").split("\n\n")[-1].split("\n")
    assert event == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "internal_error"
    server.wait_until_idle()


def test_a_batch(server: Server) -> None:
    """Six items for two slots and two places: more than fit at a time, so the server paces them itself."""
    items = [{"input": f"item {n} @patches={4 + n}@", "seed": n} for n in range(6)] + [{"input": "?"}]
    body = {"items": items, "response_format": "pcm"}
    before = server.wait_until_idle().record.counts
    answer = httpx.post(f"{server.url}/v1/audio/speech/batch", json=body, timeout=WAIT_S)
    assert answer.status_code == 200
    *results, last = answer.json()["results"]
    assert last["error"]["param"] == "input"
    served = 0
    for item, result in zip(items, results, strict=False):
        if result["status"] == "success":
            served += 1
            alone = render_alone(SynthRequest(text=item["input"], seed=item["seed"]))
            assert base64.b64decode(result["audio_data"]) == pcm16_bytes(alone.samples)
        else:
            assert result["error"]["code"] == "overloaded"
    assert served >= 4
    after = server.wait_until_idle().record.counts
    assert sum(after.finished.values()) == sum(before.finished.values()) + served


async def test_who_leaves_a_batch_frees_its_slots(server: Server) -> None:
    await asyncio.to_thread(server.wait_until_idle)
    body = {"items": [{"input": f"a long one {n} " * 10 + "@patches=never@"} for n in range(4)]}
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        call = asyncio.create_task(http.post(f"{server.url}/v1/audio/speech/batch", json=body))
        await asyncio.to_thread(server.wait_for, lambda snapshot: snapshot.record.batch.rows == 2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await asyncio.to_thread(server.wait_until_idle)


async def test_every_format_at_once_while_half_of_the_callers_leave(voice: Server) -> None:
    """B3: nothing shared is left taken by those who leave."""
    url, headers = f"{voice.url}/v1/audio/speech", {"authorization": "Bearer key-one"}
    async with httpx.AsyncClient(timeout=WAIT_S, limits=httpx.Limits(max_connections=None), headers=headers) as http:

        async def one(n: int, leave: bool) -> int:
            audio_format = list(MEDIA_TYPES)[n % len(MEDIA_TYPES)]
            way = [{}, {"stream": True}, {"stream_format": "sse"}][n % 3] if not leave else {"stream": True}
            body = {"input": TEXT, "response_format": audio_format} | way
            async with http.stream("POST", url, json=body) as answer:
                if leave:
                    async for _ in answer.aiter_raw():
                        break
                else:
                    await answer.aread()
                return answer.status_code

        await asyncio.gather(*(one(n, leave=n % 2 == 0) for n in range(36)))
        await asyncio.to_thread(voice.wait_until_idle)
        assert await asyncio.gather(*(one(n, leave=False) for n in range(10))) == [200] * 10
