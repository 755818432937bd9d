"""The HTTP surface without Ray: what an answer looks like, and what is refused before the engine is called."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import math
import wave
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.fakes.solo import render_alone
from tests.unit.serve.local import LocalServer
from voxr_ray.audio import decode_recording, parse_audio_field, pcm16_bytes, to_pcm16
from voxr_ray.messages import Prompt, Recording, Reference, SynthRequest
from voxr_ray.serve.answers import Answers
from voxr_ray.serve.responses import AudioStream


def clip(seconds: float = 0.5, rate_hz: int = 16_000, seed: int = 0) -> str:
    samples = np.random.default_rng(seed).uniform(-0.3, 0.3, int(seconds * rate_hz))
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="WAV", subtype="PCM_16")
    return base64.b64encode(file.getvalue()).decode()


def refusal(answer: Any, status: int = 400) -> dict[str, Any]:
    """The error of an answer, which must have OpenAI's shape and nothing else."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    (key,) = answer.json()
    assert key == "error"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]
    return error


async def test_a_buffered_answer_is_the_models_audio(local: LocalServer) -> None:
    answer = await local.speak(input="good morning @patches=12@", seed=5, response_format="wav")
    solo = render_alone(SynthRequest(text="good morning @patches=12@", seed=5))
    assert answer.status_code == 200
    headers = answer.headers
    assert headers["content-type"] == "audio/wav"
    assert int(headers["content-length"]) == len(answer.content)
    assert headers["x-voxr-model"] == "fake"
    assert headers["x-voxr-seed"] == "5"
    assert (headers["x-voxr-sample-rate"], headers["x-voxr-channels"], headers["x-voxr-encoding"]) == (
        "48000",
        "1",
        "s16le",
    )
    assert headers["x-voxr-stop-reason"] == "stop"
    assert headers["x-voxr-takes"] == "1"
    assert headers["x-voxr-audio-seconds"] == "0.120"
    assert "x-voxr-notice" not in headers
    assert answer.content[44:] == pcm16_bytes(solo.samples)
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.getnframes() == len(solo.samples)


@pytest.mark.parametrize("patches", [4, 12, 13])
@pytest.mark.parametrize("audio_format", ["wav", "pcm"])
async def test_streamed_payload_equals_buffered_payload(local: LocalServer, patches: int, audio_format: str) -> None:
    body = {"input": f"the same audio @patches={patches}@", "seed": 9, "response_format": audio_format}
    buffered = await local.speak(**body)
    streamed = await local.speak(**body, stream=True)
    head = 44 if audio_format == "wav" else 0
    assert buffered.content[head:] == streamed.content[head:]
    assert len(streamed.content) == head + 2 * 480 * patches
    assert "content-length" not in streamed.headers
    assert streamed.headers["content-type"] == f"audio/{audio_format}"
    assert streamed.headers["x-voxr-seed"] == "9"
    if head:
        assert streamed.content.count(b"RIFF") == 1
        assert streamed.content[4:8] == streamed.content[40:44] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**32 + 7])
async def test_the_answer_names_the_seed_it_used(local: LocalServer, seed: int) -> None:
    answer = await local.speak(input="seeds @patches=4@", seed=seed)
    assert int(answer.headers["x-voxr-seed"]) == seed % 2**32
    again = await local.speak(input="seeds @patches=4@", seed=int(answer.headers["x-voxr-seed"]))
    assert again.content == answer.content


async def test_an_unseeded_answer_can_be_had_again(local: LocalServer) -> None:
    answer = await local.speak(input="any seed @patches=4@")
    again = await local.speak(input="any seed @patches=4@", seed=int(answer.headers["x-voxr-seed"]))
    assert again.content == answer.content


async def test_bad_takes_are_replaced_and_counted() -> None:
    local = LocalServer({"retry_badcase_ratio_threshold": 1.0})
    text = "@patches=never,never,5@"
    answer = await local.speak(input=text, seed=0)
    assert answer.headers["x-voxr-takes"] == "3"
    assert answer.headers["x-voxr-seed"] == "2"
    once = await local.speak(input=text, seed=0, retry_badcase=False)
    assert once.headers["x-voxr-takes"] == "1"
    assert once.headers["x-voxr-stop-reason"] == "length"
    await local.close()


MODEL_PARAMETERS: dict[str, Any] = {
    "cfg_value": 3.5,
    "inference_timesteps": 4,
    "min_len": 7,
    "max_len": 9,
    "retry_badcase_ratio_threshold": 0.1,
}


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
async def test_every_parameter_reaches_the_engine(local: LocalServer, name: str) -> None:
    text = "something @patches=2@" if name == "min_len" else "something @patches=never@"
    chosen: dict[str, Any] = {name: MODEL_PARAMETERS[name], "max_len": 9}
    answer = await local.speak(input=text, seed=1, retry_badcase=False, **chosen)
    solo = render_alone(SynthRequest(text=text, seed=1, retry_badcase=False, **chosen))
    assert answer.content[44:] == pcm16_bytes(solo.samples)
    other = render_alone(SynthRequest(text=text, seed=1, retry_badcase=False, max_len=8))
    assert answer.content[44:] != pcm16_bytes(other.samples)


async def test_settings_are_the_defaults_of_requests() -> None:
    local = LocalServer({"cfg_value": 4.0, "inference_timesteps": 5, "min_len": 5, "max_len": 11})
    answer = await local.speak(input="defaults @patches=never@", seed=3)
    solo = render_alone(
        SynthRequest(
            text="defaults @patches=never@", seed=3, cfg_value=4.0, inference_timesteps=5, min_len=5, max_len=11
        )
    )
    assert answer.content[44:] == pcm16_bytes(solo.samples)
    await local.close()


async def test_null_means_unset_for_optional_fields(local: LocalServer) -> None:
    from voxr_ray.serve.speech_body import SpeechBody

    nulls: dict[str, Any] = dict.fromkeys(set(SpeechBody.model_fields) - {"input", "seed"})
    plain = await local.speak(input="nulls @patches=3@", seed=1)
    answer = await local.speak(input="nulls @patches=3@", seed=1, **(nulls | {"response_format": "wav"}))
    assert answer.content == plain.content
    answer = await local.speak(input="nulls @patches=3@", seed=1, **nulls)
    assert answer.headers["content-type"] == "audio/mpeg"


BAD_VALUES: dict[str, list[Any]] = {
    "input": [None, "", "   \n", 5, True, [], {}, "?!…", "🙂🙂", "x" * 4097],
    "model": ["", "  ", "tts-1", 5, []],
    "voice": ["", " ", "alloy", 5, [], {}, {"id": 5}, {"id": "alloy"}, {"name": "x"}, {"id": "default", "x": 1}],
    "response_format": ["", " ", "mp4", "WAV", 5, "x" * 100_000],
    "sample_rate": ["", "48000", 0, -1, 96_000, 44_000, 48_000.5, 10**20, math.nan, True],
    "stream": ["", "true", 1, "yes"],
    "stream_format": ["", "SSE", "websocket", 5],
    "speed": ["", "1.0", -1, 0, 2.0, 1e308, math.nan, math.inf, True],
    "instructions": ["", "  ", 5, [], "x" * 4097],
    "seed": ["", "abc", 1.5, -1, 2**63, 10**40, 1e30, math.nan, True],
    "cfg_value": ["", "2", -0.1, 10.1, 1e308, math.nan, math.inf, True],
    "inference_timesteps": ["", "10", 0, 1, -1, 101, 10**20, 2.5, math.nan, True],
    "min_len": ["", "2", -1, 10**20, 1.5, True],
    "max_len": ["", "2", 0, -1, 10**20, 1.5, math.nan, True],
    "retry_badcase": ["", "true", 1, 0],
    "retry_badcase_max_times": ["", "2", 0, -1, 11, 1.5, True],
    "retry_badcase_ratio_threshold": ["", "2", 0, -1, 101, math.nan, -math.inf, True],
    "ref_audio": ["", "  ", 5, "not base64!", "AAAA", "http://127.0.0.1/x.wav", "file:///etc/passwd", "../x.wav"],
    "prompt_audio": ["", 5, "AAAA", "https://example.org/x.wav"],
    "ref_text": ["", "  ", 5, "without audio"],
    "normalize": ["", "fr", 1, []],
    "prompt_text": ["", "  ", 5, "without audio"],
    "inputs": ["unknown"],
    "speaker": [None],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD_VALUES.items() for value in values]
)
async def test_a_bad_value_is_refused_by_the_name_of_its_field(local: LocalServer, field: str, value: Any) -> None:
    body = {"input": "fine"} | ({"prompt_text": "said"} if field == "prompt_audio" else {}) | {field: value}
    answer = await local.client.post(
        "/v1/audio/speech", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    error = refusal(answer, answer.status_code)
    assert answer.status_code in (400, 404)
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 400
    assert (await local.counts()).submitted == 0


async def test_a_missing_input_is_named(local: LocalServer) -> None:
    assert refusal(await local.speak(model="fake"))["param"] == "input"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"null", b"5", b"\xff\xfe", b"input=hi", b"[" * 100_000])
async def test_what_is_no_json_object_is_refused(local: LocalServer, body: bytes) -> None:
    answer = await local.client.post("/v1/audio/speech", content=body, headers={"content-type": "application/json"})
    refusal(answer)
    assert (await local.counts()).submitted == 0


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_another_content_type_is_refused(local: LocalServer, media_type: str | None) -> None:
    headers = {} if media_type is None else {"content-type": media_type}
    answer = await local.client.post("/v1/audio/speech", content=b'{"input": "hi"}', headers=headers)
    assert refusal(answer, 415)["code"] == "unsupported_media_type"


async def test_json_with_a_charset_is_read(local: LocalServer) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answer = await local.client.post(
        "/v1/audio/speech", content='{"input": "grüße @patches=3@"}'.encode(), headers=headers
    )
    assert answer.status_code == 200


async def test_a_body_over_the_limit_is_refused_however_it_is_sent() -> None:
    local = LocalServer({"max_body_bytes": 2048})
    body = json.dumps({"input": "x" * 3000}).encode()
    headers = {"content-type": "application/json"}

    async def in_parts() -> Any:
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    for content in (body, in_parts()):
        answer = await local.client.post("/v1/audio/speech", content=content, headers=headers)
        assert refusal(answer, 413)["code"] == "body_too_large"
    await local.close()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ref_text": "said"}, "ref_text"),
        ({"prompt_text": "said"}, "prompt_text"),
        ({"prompt_audio": clip()}, "prompt_text"),
        ({"prompt_audio": clip(), "prompt_text": " "}, "prompt_text"),
        ({"ref_audio": clip(), "ref_text": ""}, "ref_text"),
        ({"ref_audio": clip(), "ref_text": "said", "instructions": "calm"}, "instructions"),
        ({"prompt_audio": clip(), "prompt_text": "said", "instructions": "calm"}, "instructions"),
        ({"stream_format": "sse", "stream": False}, "stream"),
        ({"stream_format": "sse", "retry_badcase": True}, "retry_badcase"),
        ({"response_format": "opus", "sample_rate": 44_100}, "sample_rate"),
        ({"stream": True, "retry_badcase": True}, "retry_badcase"),
        ({"stream": True, "retry_badcase_max_times": 2}, "retry_badcase_max_times"),
        ({"retry_badcase": False, "retry_badcase_max_times": 2}, "retry_badcase_max_times"),
        ({"min_len": 50, "max_len": 5}, "max_len"),
        ({"min_len": 8, "max_len": 7}, "max_len"),
        ({"ref_audio": clip(0.05)}, "ref_audio"),
        ({"ref_audio": clip(), "prompt_audio": clip(0.05), "prompt_text": "said"}, "prompt_audio"),
    ],
)
async def test_combinations_without_a_meaning_are_refused(
    local: LocalServer, fields: dict[str, Any], param: str
) -> None:
    assert refusal(await local.speak(input="fine", **fields))["param"] == param
    assert (await local.counts()).submitted == 0


async def test_the_meaning_of_recordings(local: LocalServer) -> None:
    """Reference alone, one clip as both, continuation, and both: each is another request to the model."""
    voice, other = clip(seed=1), clip(seed=2)
    ways: dict[str, dict[str, str]] = {
        "none": {},
        "reference": {"ref_audio": voice},
        "same clip": {"ref_audio": voice, "ref_text": "said"},
        "same clip, spelled out": {"ref_audio": voice, "prompt_audio": voice, "prompt_text": "said"},
        "continuation": {"prompt_audio": other, "prompt_text": "said"},
        "both": {"ref_audio": voice, "prompt_audio": other, "prompt_text": "said"},
        "all four": {"ref_audio": voice, "ref_text": "more", "prompt_audio": other, "prompt_text": "said"},
    }
    audio = {}
    for way, fields in ways.items():
        answer = await local.speak(input="spoken @patches=4@", seed=1, **fields)
        assert answer.status_code == 200, answer.text
        audio[way] = answer.content
    assert audio["same clip"] == audio["same clip, spelled out"]
    assert len(set(audio.values())) == 6


async def test_a_transcript_of_the_reference_makes_it_the_beginning_of_what_is_continued(local: LocalServer) -> None:
    voice, other = clip(0.2, seed=1), clip(0.3, seed=2)
    fields = {"ref_audio": voice, "ref_text": "more", "prompt_audio": other, "prompt_text": "said"}
    answer = await local.speak(input="spoken @patches=4@", seed=1, **fields)
    lead, tail = (decode_recording(parse_audio_field(each, "x"), 16_000, max_seconds=9) for each in (voice, other))
    whole = Recording.of_clip(to_pcm16(np.concatenate([lead, tail])), 16_000)
    request = SynthRequest(
        text="spoken @patches=4@",
        seed=1,
        reference=Reference.of_clip(to_pcm16(lead), 16_000),
        prompt=Prompt(whole.digest, whole.clip, text="more said"),
    )
    assert answer.content[44:] == pcm16_bytes(render_alone(request).samples)


async def test_clips_that_are_continued_from_fit_one_recording_together() -> None:
    local = LocalServer({"max_reference_seconds": 0.4})
    try:
        fields = {"ref_audio": clip(0.2), "prompt_audio": clip(0.3), "prompt_text": "said"}
        assert (await local.speak(input="spoken", **fields)).status_code == 200
        error = (await local.speak(input="spoken", ref_text="more", **fields)).json()["error"]
        assert (error["param"], error["code"]) == ("ref_text", "too_large")
        assert "0.5 s together" in error["message"]
    finally:
        await local.close()


async def test_equal_recordings_in_other_files_are_the_same_voice(local: LocalServer) -> None:
    samples = np.random.default_rng(3).integers(-9_000, 9_000, 8_000).astype(np.int16)
    contents = set()
    for kind, subtype in (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("WAV", "FLOAT")):
        file = io.BytesIO()
        soundfile.write(file, samples if subtype != "FLOAT" else samples / 32_768, 16_000, format=kind, subtype=subtype)
        uri = "data:audio/x;base64," + base64.b64encode(file.getvalue()).decode()
        contents.add((await local.speak(input="voice @patches=4@", seed=1, ref_audio=uri)).content)
    assert len(contents) == 1


async def test_instructions_become_the_bracket_and_text_never_does(local: LocalServer) -> None:
    async def audio(**body: Any) -> bytes:
        return (await local.speak(seed=1, **body)).content[44:]

    def solo(text: str) -> bytes:
        return pcm16_bytes(render_alone(SynthRequest(text=text, seed=1)).samples)

    assert await audio(input="hello @patches=3@", instructions="calm") == solo("(calm)hello @patches=3@")
    assert await audio(input="(aside) hello @patches=3@") == solo("aside, hello @patches=3@")


async def test_a_request_that_fits_no_slot_is_refused_with_the_numbers() -> None:
    local = LocalServer({"continuous_capacity": 64})
    error = refusal(await local.speak(input="a text far too long for so few positions " * 3))
    assert error["param"] == "input"
    assert error["code"] == "too_large"
    assert "64" in error["message"]
    await local.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["@fail=prefill@", "@fail=decode:1@", "@audio=none@", "@audio=nan@"])
async def test_a_failure_before_the_first_audio_is_a_json_error(local: LocalServer, stream: bool, fault: str) -> None:
    error = refusal(await local.speak(input=f"text {fault} @patches=5@", stream=stream), 500)
    assert error["type"] == "server_error"
    assert (await local.speak(input="fine @patches=3@")).status_code == 200


async def test_a_failure_after_it_breaks_the_stream(
    local: LocalServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from voxr_ray.serve.responses import StreamBroken

    monkeypatch.setattr(logging.getLogger("voxr_ray"), "propagate", True)
    local.client._transport.raise_app_exceptions = True  # type: ignore[attr-defined]
    with pytest.raises(StreamBroken, match="decode"):
        await local.client.post(
            "/v1/audio/speech",
            json={"input": "text @fail=decode:5@ @patches=9@", "stream": True},
            headers={"x-request-id": "abc"},
        )
    assert any("request abc broke off after its first byte" in line for line in caplog.messages)


async def test_unknown_paths_and_methods_have_the_same_shape(local: LocalServer) -> None:
    assert refusal(await local.client.get("/v1/nothing"), 404)["code"] == "not_found"
    answer = await local.client.get("/v1/audio/speech")
    assert refusal(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/audio/voices", "GET, POST"),
        ("GET", "/v1/audio/voices/alice", "DELETE"),
        ("POST", "/health", "GET, HEAD"),
        ("PATCH", "/v1/models/a/b", "GET"),
        ("POST", "/", "GET, HEAD"),
    ],
)
async def test_a_refused_method_hears_of_all_the_path_knows(
    local: LocalServer, method: str, path: str, allowed: str
) -> None:
    answer = await local.client.request(method, path)
    assert refusal(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == allowed


async def test_probes_may_ask_for_the_head_alone(local: LocalServer) -> None:
    assert (await local.client.head("/health")).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
async def test_no_page_is_served_that_loads_from_elsewhere(local: LocalServer, path: str) -> None:
    refusal(await local.client.get(path), 404)
    assert (await local.client.get("/openapi.json")).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"input": "One.", "input": "Two."}', "input"),
        (b'{"input": "One.", "seed": 1, "\\u0073eed": 1}', "seed"),
        (b'{"input": "One.", "voice": {"id": "a", "id": "b"}}', "id"),
    ],
)
async def test_a_field_that_is_given_twice_is_refused(local: LocalServer, body: bytes, param: str) -> None:
    batch = b'{"items": [' + body + b"]}"
    for path, content in (("/v1/audio/speech", body), ("/v1/audio/speech/batch", batch)):
        answer = await local.client.post(path, content=content, headers={"content-type": "application/json"})
        error = refusal(answer)
        assert (error["param"], error["message"]) == (param, f"{param} is given twice")
    assert (await local.counts()).submitted == 0


async def test_lengths_are_compared_only_where_both_are_given(local: LocalServer) -> None:
    error = refusal(await local.speak(input="fine", min_len=50, max_len=5))
    assert "5" in error["message"]
    assert "50" in error["message"]
    assert (await local.speak(input="fine @patches=2@", max_len=1)).status_code == 200
    assert (await local.speak(input="fine @patches=2@", min_len=5, max_len=5)).status_code == 200


async def test_models_are_listed_and_found(local: LocalServer) -> None:
    listed = (await local.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert card["id"] == "fake"
    assert card["object"] == "model"
    assert "notice" not in card
    assert (await local.client.get("/v1/models/fake")).json() == card
    assert refusal(await local.client.get("/v1/models/org/other"), 404)["code"] == "model_not_found"
    assert (await local.client.get("/health")).json() == {"status": "ok", "model": "fake"}


async def test_a_notice_is_passed_on(local: LocalServer) -> None:
    from dataclasses import replace

    local.replica._info = replace(local.replica._info, notice="random weights: it makes\nnoise – no speech")
    answer = await local.speak(input="hi @patches=3@")
    assert answer.headers["x-voxr-notice"] == "random weights: it makes noise ? no speech"
    (card,) = (await local.client.get("/v1/models")).json()["data"]
    assert card["notice"].startswith("random weights")


async def test_an_openapi_description_names_every_field(local: LocalServer) -> None:
    from voxr_ray.serve.speech_body import SpeechBody

    document = (await local.client.get("/openapi.json")).json()
    body = document["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == set(SpeechBody.model_fields)
    assert all(field["description"] for field in body["properties"].values())


@pytest.mark.parametrize("name", ["text", "reference", "prompt", "voice_id", "lang"])
async def test_an_unknown_field_is_named_as_the_caller_named_it(local: LocalServer, name: str) -> None:
    """Some of these names mean another field further in."""
    answer = await local.speak(input="Hi.", **{name: "x"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
    assert f"unknown field '{name}'" in answer.json()["error"]["message"]


async def test_a_stream_waits_when_it_is_ahead_of_real_time_and_loses_nothing() -> None:
    text = "one two three four five six seven. " * 4
    fields: dict[str, Any] = {"input": text, "seed": 3, "response_format": "pcm", "stream": True}
    free, paced = LocalServer({"max_part_chars": 40}), LocalServer({"max_part_chars": 40, "stream_lead_seconds": 0.05})
    try:
        whole = (await free.speak(**fields)).content
        answer = await Answers(paced.service).answer(
            json.dumps(fields).encode(), "", asyncio.get_running_loop().time() + 60
        )
        assert isinstance(answer, AudioStream)
        sent, begun = b"", []
        async for piece in answer.pieces:
            sent += piece
            begun.append((await paced.counts()).submitted)
        assert sent == whole
        assert begun[0] == 1  # the next part is asked for when there is room for it
        assert begun[-1] == 4
    finally:
        await free.close()
        await paced.close()
