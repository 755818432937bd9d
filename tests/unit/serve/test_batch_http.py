"""Many requests in one call: order, isolation, limits."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest

from tests.fakes.solo import render_alone
from tests.unit.serve.local import LocalServer
from voxr_ray.audio import pcm16_bytes
from voxr_ray.errors import EngineError, InvalidRequest, TooLarge, VoxrError
from voxr_ray.messages import SynthRequest, SynthResult
from voxr_ray.serve.batch import run_all, synthesize_batch


async def post(local: LocalServer, **body: Any) -> Any:
    return await local.client.post("/v1/audio/speech/batch", json=body)


def pcm(text: str, **fields: Any) -> bytes:
    return pcm16_bytes(render_alone(SynthRequest(text=text, **fields)).samples)


async def test_every_item_has_its_own_result_in_order(local: LocalServer) -> None:
    lengths = [30, 4, 17, 4, 25, 9, 11, 3, 8, 21]
    items = [{"input": f"item {n} @patches={length}@", "seed": n} for n, length in enumerate(lengths)]
    answer = await post(local, items=items, response_format="pcm")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (10, 10, 0)
    for n, result in enumerate(body["results"]):
        assert (result["index"], result["status"], result["error"]) == (n, "success", None)
        assert base64.b64decode(result["audio_data"]) == pcm(items[n]["input"], seed=n)
        assert result["media_type"] == "audio/pcm"
        assert result["sample_rate"] == 48_000
        assert (result["seed"], result["takes"], result["stop_reason"]) == (n, 1, "stop")
        assert result["usage"]["output_tokens"] == max(4, lengths[n])


async def test_what_fails_fails_alone(local: LocalServer) -> None:
    items = [
        {"input": "fine @patches=4@", "seed": 1},
        {"input": "broken @fail=decode:2@ @patches=9@"},
        {"input": "?!"},
        {"input": "fine", "voice": "nobody"},
        {"input": "fine", "volume": 3},
        {"input": "fine", "stream": True},
        {"input": "fine", "stream_format": "sse"},
        {"input": "fine", "model": "other"},
        {"input": "fine", "ref_audio": "no base64!"},
        {},
        {"input": "fine", "seed": -1},
        {"input": "fine too @patches=4@", "seed": 2, "response_format": "flac"},
    ]
    body = (await post(local, items=items, response_format="pcm")).json()
    assert (body["total"], body["succeeded"], body["failed"]) == (12, 2, 10)
    results = body["results"]
    assert base64.b64decode(results[0]["audio_data"]) == pcm("fine @patches=4@", seed=1)
    assert base64.b64decode(results[11]["audio_data"]).startswith(b"fLaC")
    codes = ["internal_error", "invalid_value", "voice_not_found", *["invalid_value"] * 3, "model_not_found",
             *["invalid_value"] * 3]  # fmt: skip
    params = [None, "input", "voice", "volume", "stream", "stream", "model", "ref_audio", "input", "seed"]
    for result, code, param in zip(results[1:11], codes, params, strict=True):
        assert (result["status"], result["audio_data"], result["media_type"]) == ("error", None, None)
        assert set(result["error"]) == {"message", "type", "param", "code"}
        assert (result["error"]["code"], result["error"]["param"]) == (code, param)


async def test_shared_fields_hold_for_items_that_do_not_say(local: LocalServer) -> None:
    items = [
        {"input": "a @patches=never@", "seed": 1},
        {"input": "b @patches=never@", "max_len": 5, "seed": None},
        {"input": "c @patches=4@", "response_format": "flac"},
    ]
    body = (await post(local, items=items, response_format="wav", max_len=8, seed=3, voice=None)).json()
    one, two, three = body["results"]
    assert (one["seed"], one["usage"]["output_tokens"], one["media_type"]) == (1, 8, "audio/wav")
    assert (two["seed"], two["usage"]["output_tokens"]) == (3, 5)
    assert three["media_type"] == "audio/flac"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "items", "invalid_value"),
        ({"items": None}, "items", "invalid_value"),
        ({"items": []}, "items", "invalid_value"),
        ({"items": "hi"}, "items", "invalid_value"),
        ({"items": ["hi"]}, "items", "invalid_value"),
        ({"items": {"input": "hi"}}, "items", "invalid_value"),
        ({"items": [{"input": "hi"}] * 33}, "items", "too_large"),
        ({"items": [{"input": "hi"}], "input": "hi"}, "input", "invalid_value"),
        ({"items": [{"input": "hi"}], "stream": False}, "stream", "invalid_value"),
        ({"items": [{"input": "hi"}], "stream_format": "audio"}, "stream_format", "invalid_value"),
        ({"items": [{"input": "hi"}], "volume": None}, "volume", "invalid_value"),
    ],
)
async def test_a_batch_that_is_none_is_refused_as_a_whole(
    local: LocalServer, body: dict[str, Any], param: str, code: str
) -> None:
    answer = await post(local, **body)
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, code)
    assert (await local.counts()).submitted == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"items": [{"input": "\xff"}]}', b"[" * 100_000])
async def test_what_is_no_json_object_is_refused(local: LocalServer, content: bytes) -> None:
    answer = await local.client.post(
        "/v1/audio/speech/batch", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400


async def test_numbers_that_are_none_reach_their_item(local: LocalServer) -> None:
    body = json.dumps({"items": [{"input": "hi", "cfg_value": float("nan")}, {"input": "hi @patches=3@"}]})
    answer = await local.client.post(
        "/v1/audio/speech/batch", content=body, headers={"content-type": "application/json"}
    )
    assert [each["status"] for each in answer.json()["results"]] == ["error", "success"]


async def test_what_is_not_ready_in_time_says_so_and_the_rest_is_kept() -> None:
    local = LocalServer({"request_timeout_s": 2.0, "batch_concurrency": 2})
    body = (
        await post(local, items=[{"input": "slow @sleep=step:0.1@ @patches=60@"}, {"input": "a @patches=3@"}])
    ).json()
    slow, quick = body["results"]
    assert slow["error"]["code"] == "timeout"
    assert quick["status"] == "success"
    await local.close()


class TestRunAll:
    async def test_so_many_at_a_time_and_no_more(self) -> None:
        running = most = 0

        async def job() -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return running

        assert len(await run_all([job] * 20, 3)) == 20
        assert most == 3

    async def test_faults_of_ours_are_errors_too(self) -> None:
        async def job() -> int:
            raise ZeroDivisionError

        async def fine() -> int:
            return 1

        broken, kept = await run_all([job, fine], 2)
        assert isinstance(broken, EngineError)
        assert kept == 1

    async def test_one_who_leaves_ends_them_all(self) -> None:
        ended = 0

        async def job() -> None:
            nonlocal ended
            try:
                await asyncio.Event().wait()
            finally:
                ended += 1

        task = asyncio.create_task(run_all([job] * 5, 3))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == 3, "the two that never began have nothing to end"


async def test_by_handle(local: LocalServer) -> None:
    requests = [SynthRequest(text=f"item {n} @patches={3 + n}@", seed=n) for n in range(6)]
    requests[2] = SynthRequest(text="hi @tokens=none@")
    results: list[SynthResult | VoxrError] = await synthesize_batch(local.service, requests)
    assert isinstance(results[2], InvalidRequest)
    for n in (0, 1, 3, 4, 5):
        result = results[n]
        assert isinstance(result, SynthResult)
        np.testing.assert_array_equal(result.samples, render_alone(requests[n]).samples)
    with pytest.raises(TooLarge, match="33 items"):
        await synthesize_batch(local.service, requests[:1] * 33)
    assert await synthesize_batch(local.service, []) == []
