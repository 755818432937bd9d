"""Long texts: cut at sentences, one job after another, each continuing the one before, one answer."""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from tests.fakes.solo import render_alone
from tests.unit.serve.local import LocalServer
from tests.unit.serve.test_speech_http import refusal
from tests.unit.serve.voice_files import recording
from voxr_ray.audio import clip_of, decode_recording, pcm16_bytes, to_pcm16
from voxr_ray.messages import Prompt, Reference, SynthRequest
from voxr_ray.serve.narration import parts_of

SENTENCE = "This is sentence number {}, and it is spoken with @patches=6@ care. "
LONG = "".join(SENTENCE.format(n) for n in range(12))


def as_reference(samples: np.ndarray) -> Reference:
    return Reference.of_clip(clip_of(samples, 48_000, 16_000), 16_000)


def as_prompt(samples: np.ndarray, text: str) -> Prompt:
    clip = Reference.of_clip(clip_of(samples, 48_000, 16_000), 16_000)
    return Prompt(clip.digest, clip.clip, text=text)


def narrated(text: str, seed: int, most: int, style: str = "", **first: Any) -> bytes:
    """The right answer, the plain way: every part rendered alone from what the one before left."""
    parts = parts_of(text, most)
    assert len(parts) > 2
    own: Prompt | None = first.get("prompt")
    reference, prompt = first.get("reference"), own
    audio = []
    for n, part in enumerate(parts):
        spoken = (style if prompt is own else "") + part.strip()
        request = SynthRequest(text=spoken, seed=seed + 1000 * n, reference=reference, prompt=prompt)
        samples = render_alone(request).samples
        audio.append(samples)
        if reference is None:
            reference = as_reference(samples) if own is None else Reference(own.digest, own.clip)
        prompt = as_prompt(samples, part)
    return pcm16_bytes(np.concatenate(audio))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_text_is_its_parts_one_after_another(local: LocalServer, stream: bool) -> None:
    answer = await local.speak(input=LONG, seed=5, stream=stream)
    assert answer.status_code == 200
    assert answer.content[44:] == narrated(LONG, 5, 500)
    assert answer.content.count(b"RIFF") == 1
    assert answer.headers["x-voxr-seed"] == "5"
    if not stream:
        with wave.open(io.BytesIO(answer.content)) as file:
            assert 2 * file.getnframes() == len(answer.content) - 44
        assert answer.headers["x-voxr-stop-reason"] == "stop"
        assert answer.headers["x-voxr-takes"] == "1"
    counts = await local.counts()
    assert counts.submitted == len(parts_of(LONG, 500))


async def test_a_short_text_stays_one_job(local: LocalServer) -> None:
    text = "One sentence. Another one! (And a third.)  " + "x" * 400
    answer = await local.speak(input=text, seed=5)
    assert answer.content[44:] == pcm16_bytes(render_alone(SynthRequest(text=text, seed=5)).samples)
    assert (await local.counts()).submitted == 1


async def test_every_part_has_the_reference_and_the_style_is_never_lost(local: LocalServer) -> None:
    voice = recording(3)
    uri = base64.b64encode(voice).decode()
    clip = to_pcm16(decode_recording(voice, 16_000, max_seconds=60))
    answer = await local.speak(input=LONG, seed=5, ref_audio=uri)
    assert answer.content[44:] == narrated(LONG, 5, 500, reference=Reference.of_clip(clip, 16_000))
    answer = await local.speak(input=LONG, seed=5, ref_audio=uri, instructions="calm")
    assert answer.content[44:] == narrated(LONG, 5, 500, "(calm)", reference=Reference.of_clip(clip, 16_000))
    answer = await local.speak(input=LONG, seed=5, prompt_audio=uri, prompt_text="said")
    digest = Reference.of_clip(clip, 16_000).digest
    assert answer.content[44:] == narrated(LONG, 5, 500, prompt=Prompt(digest, clip, text="said"))


async def test_an_unseeded_long_answer_can_be_had_again(local: LocalServer) -> None:
    answer = await local.speak(input=LONG)
    again = await local.speak(input=LONG, seed=int(answer.headers["x-voxr-seed"]))
    assert again.content == answer.content


async def test_a_part_that_ran_away_or_is_too_long_is_not_continued(local: LocalServer) -> None:
    """Its text would not match its clip: the next part begins as the first one did, with the same voice."""
    runaway = "It never ends @patches=never@ " + "word " * 60 + "here. "
    text = runaway + "After that comes a sentence of a good length, " + "on and on " * 20 + "@patches=5@."
    answer = await local.speak(input=text, seed=1, max_len=40, retry_badcase=False)
    first, second = parts_of(text, 500)
    limits: dict[str, Any] = {"max_len": 40, "retry_badcase": False}
    parts = [render_alone(SynthRequest(text=first.strip(), seed=1, **limits)),
             render_alone(SynthRequest(text=second.strip(), seed=1001, **limits))]  # fmt: skip
    assert answer.content[44:] == pcm16_bytes(np.concatenate([part.samples for part in parts]))
    assert answer.headers["x-voxr-stop-reason"] == "length"


async def test_what_does_not_fit_is_refused_before_any_audio() -> None:
    local = LocalServer({"continuous_capacity": 1500})
    text = LONG + "w" * 450 + ". " + LONG
    for stream in (False, True):
        error = refusal(await local.speak(input=text, stream=stream))
        assert (error["code"], error["param"]) == ("too_large", "input")
        assert "1500" in error["message"]
    assert (await local.counts()).submitted == 0
    await local.close()


async def test_later_parts_wait_for_room_instead_of_failing() -> None:
    local = LocalServer({"max_batch": 1, "max_queue": 0}, delays={"step": 0.002})
    expected = narrated(LONG, 5, 500)

    async def others() -> list[int]:
        return [(await local.speak(input="in the way @patches=40@")).status_code for _ in range(8)]

    long = asyncio.create_task(local.speak(input=LONG, seed=5))
    while (await local.replica.engine_record()).load.renders == 0:
        await asyncio.sleep(0.001)
    statuses = await others()
    answer = await long
    assert answer.status_code == 200
    assert answer.content[44:] == expected
    assert 503 in statuses
    await local.close()


async def test_a_failing_part_breaks_the_whole(local: LocalServer) -> None:
    refusal(await local.speak(input=LONG + "Now @fail=prefill@ this fails."), 500)
    refusal(await local.speak(input="It fails @fail=prefill@ at once. " + LONG, stream=True), 500)


async def test_a_text_as_long_as_a_book(local: LocalServer) -> None:
    server = LocalServer({"max_input_chars": 200_000})
    text = "".join(f"Sentence {n} of the book is not long @patches=3@. " for n in range(400))
    answer = await server.speak(input=text, seed=1, response_format="pcm")
    assert answer.status_code == 200
    assert len(answer.content) >= 2 * 480 * 3 * len(parts_of(text, 500))
    assert refusal(await local.speak(input=text))["code"] == "too_large"
    await server.close()


@pytest.mark.parametrize("text", ["?! " * 400 + "word", "word " + "… " * 800, "好" * 2000, "x" * 3000, "a\n\n" * 900])
async def test_odd_long_texts_are_spoken(local: LocalServer, text: str) -> None:
    answer = await local.speak(input=text, seed=1, stream=True)
    assert answer.status_code == 200, answer.text


async def test_handles_get_long_texts_too(local: LocalServer) -> None:
    request = SynthRequest(text="(calm)" + LONG, seed=5)
    result = await local.service.render(request)
    chunks = [chunk async for chunk in local.service.render_stream(request)]
    assert pcm16_bytes(result.samples) == narrated(LONG, 5, 500, "(calm)")
    np.testing.assert_array_equal(np.concatenate([chunk.samples for chunk in chunks]), result.samples)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.summary for chunk in chunks] == [None] * (len(chunks) - 1) + [result.summary]
    assert {chunk.seed for chunk in chunks} == {5}


async def test_one_who_leaves_a_long_text_leaves_nothing(local: LocalServer) -> None:
    async with aclosing(local.service.render_stream(SynthRequest(text=LONG, seed=5))) as chunks:
        await anext(chunks)
    for _ in range(100):
        if (await local.replica.engine_record()).load.renders == 0:
            break
        await asyncio.sleep(0.01)
    assert (await local.replica.engine_record()).load.renders == 0
    assert (await local.counts()).submitted == 1
