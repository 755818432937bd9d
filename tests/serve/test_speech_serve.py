"""Speech over Serve's real HTTP proxy and over handles: what arrives is what one engine alone would make."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from tests.fakes.solo import render_alone
from tests.serve.server import WAIT_S, Server
from voxr_ray.audio import pcm16_bytes
from voxr_ray.errors import BadAudio, EngineError, InvalidRequest
from voxr_ray.messages import SynthRequest


def solo(text: str, **parameters: Any) -> bytes:
    return pcm16_bytes(render_alone(SynthRequest(text=text, **parameters)).samples)


def recording(seed: int = 0) -> bytes:
    file = io.BytesIO()
    samples = np.random.default_rng(seed).uniform(-0.3, 0.3, 24_000)
    soundfile.write(file, samples, 48_000, format="FLAC", subtype="PCM_16")
    return file.getvalue()


@pytest.fixture(scope="module")
def wide(deploy: Any) -> Server:
    """Eight slots."""
    server: Server = deploy("wide", max_batch=8, max_queue=64)
    return server


@pytest.fixture(scope="module")
def client(wide: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{wide.url}/v1", api_key="any", max_retries=0)


@pytest.mark.parametrize("audio_format", ["wav", "pcm"])
async def test_streams_and_whole_answers_agree_at_concurrency_8(wide: Server, audio_format: str) -> None:
    texts = [f"text number {index} @patches={5 + 3 * index}@" for index in range(8)]

    async def fetch(http: httpx.AsyncClient, text: str, stream: bool) -> tuple[bytes, list[int]]:
        body = {"input": text, "seed": 4, "response_format": audio_format, "stream": stream}
        async with http.stream("POST", f"{wide.url}/v1/audio/speech", json=body) as answer:
            assert answer.status_code == 200
            parts = [part async for part in answer.aiter_raw()]
        return b"".join(parts), [len(part) for part in parts]

    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        answers = await asyncio.gather(*(fetch(http, text, stream) for stream in (True, False) for text in texts))
    head = 44 if audio_format == "wav" else 0
    for index, text in enumerate(texts):
        (streamed, _), (whole, _) = answers[index], answers[8 + index]
        assert streamed[head:] == whole[head:] == solo(text, seed=4)
        if head:
            assert streamed.count(b"RIFF") == whole.count(b"RIFF") == 1
            assert streamed[40:44] == b"\xff\xff\xff\xff"
            with wave.open(io.BytesIO(whole)) as file:
                assert 2 * file.getnframes() == len(whole) - 44
        assert len(streamed) % 2 == 0


async def test_rows_of_two_samplers_are_each_their_own(wide: Server) -> None:
    async def fetch(http: httpx.AsyncClient, index: int) -> tuple[dict[str, Any], bytes]:
        sampler = {"cfg_value": 2.0 + index % 2, "inference_timesteps": 10 - 4 * (index % 2)}
        text = f"sampler test {index} @patches={4 + index}@"
        answer = await http.post(
            f"{wide.url}/v1/audio/speech", json={"input": text, "seed": index, "response_format": "wav"} | sampler
        )
        assert answer.status_code == 200
        return {"text": text, "seed": index} | sampler, answer.content[44:]

    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        for parameters, audio in await asyncio.gather(*(fetch(http, index) for index in range(12))):
            assert audio == solo(**parameters)


def test_the_first_audio_arrives_while_the_rest_is_made(server: Server) -> None:
    server.wait_until_idle()
    body = {"input": "a long one " * 3 + "@patches=never@", "stream": True, "response_format": "pcm"}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=WAIT_S) as answer:
        parts = answer.iter_raw()
        first = next(parts)
        snapshot = server.snapshot()
        rest = sum(len(part) for part in parts)
    assert snapshot.record.batch.rows == 1
    assert 0 < len(first) < rest
    assert answer.headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_id_is_kept_or_made_and_sent_once(wide: Server, stream: bool) -> None:
    body = {"input": "ids @patches=4@", "stream": stream}
    answer = httpx.post(f"{wide.url}/v1/audio/speech", json=body, headers={"x-request-id": "my-id-1"})
    assert answer.headers.get_list("x-request-id") == ["my-id-1"]
    answer = httpx.post(f"{wide.url}/v1/audio/speech", json=body)
    assert len(answer.headers.get_list("x-request-id")) == 1
    refused = httpx.post(f"{wide.url}/v1/audio/speech", json={"input": ""}, headers={"x-request-id": "my-id-2"})
    assert refused.headers.get_list("x-request-id") == ["my-id-2"]


def test_refusals_through_the_proxy_keep_their_shape(wide: Server) -> None:
    speech = f"{wide.url}/v1/audio/speech"
    answers = {
        400: httpx.post(speech, json={"input": "hi", "speed": 2}),
        404: httpx.get(f"{wide.url}/v1/nothing"),
        405: httpx.get(speech),
        413: httpx.post(speech, content=bytes(33 * 2**20), headers={"content-type": "application/json"}),
        415: httpx.post(speech, content=b"hi", headers={"content-type": "text/plain"}),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


class TestOpenAIClient:
    """The unmodified client."""

    @pytest.mark.parametrize("audio_format", ["wav", "pcm"])
    def test_create(self, client: openai.OpenAI, audio_format: Any) -> None:
        text = "from the client @patches=9@"
        answer = client.audio.speech.create(
            model="fake", voice="default", input=text, response_format=audio_format, extra_body={"seed": 3}
        )
        head = {"wav": b"RIFF", "pcm": b""}[audio_format]
        assert answer.content.startswith(head)
        assert answer.content[44 if head else 0 :] == solo(text, seed=3)
        assert answer.response.headers["content-type"] == f"audio/{audio_format}"

    @pytest.mark.parametrize("stream", [False, True])
    def test_with_streaming_response(self, client: openai.OpenAI, stream: bool) -> None:
        text = "from the streaming client @patches=20@"
        with client.audio.speech.with_streaming_response.create(
            model="fake",
            voice="default",
            input=text,
            response_format="pcm",
            stream_format="audio",
            extra_body={"seed": 3, "stream": stream},
        ) as answer:
            assert b"".join(answer.iter_bytes()) == solo(text, seed=3)

    def test_models(self, client: openai.OpenAI) -> None:
        assert [model.id for model in client.models.list()] == ["fake"]
        assert client.models.retrieve("fake").id == "fake"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")

    def test_errors(self, client: openai.OpenAI) -> None:
        def create(**fields: Any) -> Any:
            return client.audio.speech.create(**({"model": "fake", "voice": "default", "input": "hi"} | fields))

        with pytest.raises(openai.BadRequestError) as bad:
            create(speed=1.5)
        assert bad.value.param == "speed"
        assert bad.value.code == "invalid_value"
        with pytest.raises(openai.NotFoundError) as unknown:
            create(voice="alloy")
        assert unknown.value.code == "voice_not_found"
        with pytest.raises(openai.NotFoundError) as unknown:
            create(model="tts-1")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            create(response_format="mp4")
        assert "mp3, opus, aac, flac, wav, pcm" in bad.value.message
        with pytest.raises(openai.InternalServerError) as failed:
            create(input="hi @fail=decode:1@")
        assert failed.value.status_code == 500


class TestHandles:
    """The router's public methods."""

    def test_synthesize(self, wide: Server) -> None:
        request = SynthRequest(text="by handle @patches=9@", seed=2)
        result = wide.handle.synthesize.remote(request).result(timeout_s=WAIT_S)
        alone = render_alone(request)
        np.testing.assert_array_equal(result.samples, alone.samples)
        assert result.summary == alone.summary

    def test_a_long_result_arrives_whole(self, wide: Server) -> None:
        """800 patches of the fake are 1.5 MB: more than one piece."""
        request = SynthRequest(text="x" * 130 + "@patches=1200@", seed=2, retry_badcase_ratio_threshold=20.0)
        result = wide.handle.synthesize.remote(request).result(timeout_s=WAIT_S)
        np.testing.assert_array_equal(result.samples, render_alone(request).samples)
        assert len(result.samples) > 2**19

    @pytest.mark.parametrize("by_reference", [False, True])
    def test_synthesize_stream(self, wide: Server, by_reference: bool) -> None:
        request = SynthRequest(text="by handle @patches=9@", seed=2)
        handle = wide.handle.options(stream=True, _by_reference=by_reference)
        chunks = list(handle.synthesize_stream.remote(request))
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert [chunk.summary is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        np.testing.assert_array_equal(np.concatenate([c.samples for c in chunks]), render_alone(request).samples)

    def test_an_encoded_reference_is_the_clip_it_came_from(self, wide: Server) -> None:
        reference = wide.handle.encode_reference.remote(recording()).result(timeout_s=WAIT_S)
        prompt = wide.handle.encode_prompt.remote(recording(1), "said").result(timeout_s=WAIT_S)
        assert reference.features is not None
        assert reference.features.dtype == np.float32
        assert (prompt.text, prompt.clip) == ("said", None)
        request = SynthRequest(text="voice @patches=5@", seed=2, reference=reference, prompt=prompt)
        result = wide.handle.synthesize.remote(request).result(timeout_s=WAIT_S)
        body = {"input": "voice @patches=5@", "seed": 2, "prompt_text": "said", "response_format": "wav"}
        for field, seed in (("ref_audio", 0), ("prompt_audio", 1)):
            body[field] = base64.b64encode(recording(seed)).decode()
        answer = httpx.post(f"{wide.url}/v1/audio/speech", json=body, timeout=WAIT_S)
        assert answer.content[44:] == pcm16_bytes(result.samples)

    def test_synthesize_batch(self, wide: Server) -> None:
        requests = [SynthRequest(text=f"item {n} @patches={4 + n}@", seed=n) for n in range(12)]
        requests[5] = SynthRequest(text="broken @fail=decode:2@ @patches=9@")
        results = wide.handle.synthesize_batch.remote(requests).result(timeout_s=WAIT_S)
        assert isinstance(results.pop(5), EngineError)
        del requests[5]
        for request, result in zip(requests, results, strict=True):
            np.testing.assert_array_equal(result.samples, render_alone(request).samples)

    def test_errors_arrive_as_themselves(self, wide: Server) -> None:
        with pytest.raises(BadAudio, match="not a recording"):
            wide.handle.encode_reference.remote(b"not audio").result(timeout_s=WAIT_S)
        with pytest.raises(InvalidRequest, match="blank"):
            wide.handle.encode_prompt.remote(recording(), " ").result(timeout_s=WAIT_S)
        with pytest.raises(InvalidRequest, match="no token"):
            wide.handle.synthesize.remote(SynthRequest(text="hi @tokens=none@")).result(timeout_s=WAIT_S)

    def test_voices(self, wide: Server) -> None:
        assert wide.handle.voices.remote().result(timeout_s=WAIT_S) == ["default"]
