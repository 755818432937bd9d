"""Speech sessions without Ray: fragments in, sentences out, cancel, slow readers, leavers, and every bad message."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.solo import render_alone
from tests.unit.serve.local import LocalServer
from tests.unit.serve.sockets import Socket, connected
from tests.unit.serve.test_narration import as_prompt, as_reference
from tests.unit.serve.test_speech_http import BAD_VALUES, clip
from tests.unit.serve.voice_files import recording
from voxr_ray.audio import pcm16_bytes
from voxr_ray.messages import SynthRequest

SENTENCES = ["Hello there @patches=5@ friend. ", "How are you @patches=7@ today? ", "Good."]


async def settled(local: LocalServer, condition: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(20):
        while not condition(snapshot := await local.replica.engine_record()):
            await asyncio.sleep(0.005)
    return snapshot


def continued(sentences: list[str], seed: int) -> list[bytes]:
    """What each sentence sounds like when it continues the one before."""
    audio, reference, prompt = [], None, None
    for n, sentence in enumerate(sentences):
        request = SynthRequest(text=sentence.strip(), seed=seed + 1000 * n, reference=reference, prompt=prompt)
        samples = render_alone(request, stream=True).samples
        audio.append(pcm16_bytes(samples))
        reference = reference or as_reference(samples)
        prompt = as_prompt(samples, sentence)
    return audio


def audio_of(came: list[Any]) -> list[bytes]:
    """The audio of every sentence in what came."""
    audio: list[bytes] = []
    for message in came:
        if isinstance(message, bytes):
            audio[-1] += message
        elif message["type"] == "audio.start":
            audio.append(b"")
    return audio


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_fragments_become_sentences_and_each_continues_the_last(local: LocalServer, size: int) -> None:
    text = "".join(SENTENCES)
    async with connected(local) as socket:
        socket.say("session.config", voice="default", response_format="pcm", seed=3)
        for start in range(0, len(text), size):
            socket.say("input.text", text=text[start : start + size])
        socket.say("input.done")
        came = await socket.until("session.done")
    assert audio_of(came) == continued(SENTENCES, 3)
    said = [message for message in came if isinstance(message, dict)]
    assert [message["type"] for message in said] == ["audio.start", "audio.done"] * 3 + ["session.done"]
    assert [message["sentence_text"] for message in said[:-1:2]] == [sentence.strip() for sentence in SENTENCES]
    assert [message["sentence_index"] for message in said[:-1]] == [0, 0, 1, 1, 2, 2]
    assert said[0] == {"type": "audio.start", "sentence_index": 0, "sentence_text": SENTENCES[0].strip(),
                       "format": "pcm", "sample_rate": 48_000, "channels": 1, "seed": 3}  # fmt: skip
    assert [message["total_bytes"] for message in said[1:-1:2]] == [len(part) for part in audio_of(came)]
    assert said[-1] == {"type": "session.done", "total_sentences": 3}


async def test_a_sentence_is_spoken_before_the_text_is_complete(local: LocalServer) -> None:
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3)
        socket.say("input.text", text=SENTENCES[0] + "And")
        came = await socket.until("audio.done")
        assert audio_of(came) == continued(SENTENCES[:1], 3)
        socket.say("input.text", text=" so on")
        await asyncio.sleep(0.05)
        assert socket.unread == 0
        socket.say("input.flush")
        assert (await socket.next())["sentence_text"] == "And so on"
        await socket.until("audio.done")
        socket.say("input.done")
        assert await socket.next() == {"type": "session.done", "total_sentences": 2}


@pytest.mark.parametrize("stream_audio", [None, False, True])
@pytest.mark.parametrize("audio_format", [None, "wav", "pcm"])
async def test_frames_and_files(local: LocalServer, audio_format: str | None, stream_audio: bool | None) -> None:
    """PCM comes in frames and WAV as one file a sentence, unless asked otherwise."""
    given = {"response_format": audio_format, "stream_audio": stream_audio}
    async with connected(local) as socket:
        socket.say("session.config", seed=3, **{name: value for name, value in given.items() if value is not None})
        socket.say("input.text", text=SENTENCES[1])
        socket.say("input.done")
        came = await socket.until("session.done")
    frames = [message for message in came if isinstance(message, bytes)]
    in_frames = audio_format == "pcm" if stream_audio is None else stream_audio
    assert (len(frames) > 1) == in_frames
    data = b"".join(frames)
    if audio_format != "pcm":
        assert data.count(b"RIFF") == 1
        if not in_frames:
            with wave.open(io.BytesIO(data)) as file:
                assert 2 * file.getnframes() == len(data) - 44
        data = data[44:]
    assert data == continued([SENTENCES[1]], 3)[0]
    assert came[0]["format"] == (audio_format or "wav")


async def test_one_session_has_many_utterances_in_one_voice(local: LocalServer) -> None:
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3)
        first = []
        for utterance in range(3):
            socket.say("input.text", text=SENTENCES[0])
            socket.say("input.done")
            came = await socket.until("session.done")
            assert came[-1]["total_sentences"] == 1
            assert came[0]["sentence_index"] == 0
            first.append(audio_of(came)[0])
            if utterance == 1:
                voice = as_reference(render_alone(SynthRequest(text=SENTENCES[0].strip(), seed=3), stream=True).samples)
                request = SynthRequest(text=SENTENCES[0].strip(), seed=1003, reference=voice)
                assert first[1] == pcm16_bytes(render_alone(request, stream=True).samples)
        socket.say("session.config", response_format="pcm", seed=3)
        socket.say("input.text", text=SENTENCES[0])
        socket.say("input.done")
        assert audio_of(await socket.until("session.done")) == first[:1]
        socket.say("input.done")
        assert await socket.next() == {"type": "session.done", "total_sentences": 0}


async def test_a_session_speaks_with_stored_voices_and_recordings(local: LocalServer) -> None:
    voice = recording(4)
    files = {"audio_sample": ("a.wav", voice)}
    assert (await local.client.post("/v1/audio/voices", data={"name": "alice"}, files=files)).status_code == 200
    answer = await local.speak(input=SENTENCES[0].strip(), voice="alice", seed=3, response_format="pcm", stream=True)
    configs: list[dict[str, Any]] = [{"voice": "alice"}, {"ref_audio": base64.b64encode(voice).decode()}]
    for config in configs:
        async with connected(local) as socket:
            socket.say("session.config", response_format="pcm", seed=3, **config)
            socket.say("input.text", text=SENTENCES[0])
            socket.say("input.done")
            assert audio_of(await socket.until("session.done")) == [answer.content]


async def test_instructions_style_what_begins_and_brackets_are_spoken(local: LocalServer) -> None:
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3, instructions="calm")
        socket.say("input.text", text="(Aside) this is spoken @patches=3@.")
        socket.say("input.done")
        (audio,) = audio_of(await socket.until("session.done"))
    request = SynthRequest(text="(calm)Aside, this is spoken @patches=3@.", seed=3)
    assert audio == pcm16_bytes(render_alone(request, stream=True).samples)


async def test_cancel_stops_at_once_and_the_session_goes_on() -> None:
    local = LocalServer(delays={"step": 0.005})
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3)
        socket.say("input.text", text="It never ends and ends @patches=never@ never. Nor does this. And this is")
        assert (await socket.next())["type"] == "audio.start"
        assert isinstance(await socket.next(), bytes)
        socket.say("input.cancel")
        came = await socket.until("input.cancelled")
        assert all(isinstance(message, bytes) for message in came[:-1]), "nothing else was begun"
        snapshot = await settled(local, lambda s: s.load.renders == 0)
        assert snapshot.record.counts.cancelled == 1
        socket.say("input.text", text="Fine again @patches=4@.")
        socket.say("input.done")
        came = await socket.until("session.done")
        assert came[0]["sentence_text"] == "Fine again @patches=4@."
        assert came[-1]["total_sentences"] == 1
        socket.say("input.cancel")
        assert await socket.next() == {"type": "input.cancelled"}
    await local.close()


async def test_a_cancel_keeps_a_configuration_that_waits(local: LocalServer) -> None:
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3)
        socket.say("input.cancel")
        socket.say("input.text", text=SENTENCES[0])
        socket.say("input.done")
        came = await socket.until("session.done")
    assert came[0] == {"type": "input.cancelled"}
    assert audio_of(came) == continued(SENTENCES[:1], 3)


@pytest.mark.parametrize("when", ["before", "waiting", "speaking"])
async def test_one_who_leaves_frees_the_slot(when: str) -> None:
    local = LocalServer(delays={"step": 0.005})
    async with connected(local) as socket:
        if when != "before":
            socket.say("session.config", response_format="pcm")
            socket.say("input.text", text="It never ends and it never ends @patches=never@ at all. " * 5)
            await settled(local, lambda s: s.load.renders == 1)
        if when == "speaking":
            await socket.next()
            await socket.next()
    snapshot = await settled(local, lambda s: s.load.renders == 0 and s.record.batch.rows == 0)
    assert snapshot.record.counts.cancelled == (when != "before")
    assert not snapshot.record.counts.finished
    await local.close()


async def test_a_reader_with_credit_never_has_more_under_way(local: LocalServer) -> None:
    window = 20_000
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3, max_unread_bytes=window)
        socket.say("input.text", text="A sentence of some length @patches=60@ to read. " * 3)
        socket.say("input.done")
        read, done, most = 0, False, 0
        while not done:
            await asyncio.sleep(0.05)  # a slow reader: everything that may come has come
            held = 0
            while socket.unread:
                message = await socket.next()
                held += len(message) if isinstance(message, bytes) else 0
                done = isinstance(message, dict) and message["type"] == "session.done"
            most = max(most, held)
            assert held <= window
            if not done:
                submitted = (await local.counts()).submitted
                assert submitted <= 1 + (read + held) // (60 * 960), "no sentence is begun before the last is sent"
            read += held
            socket.say("audio.read", bytes=read)
    assert read == 3 * 60 * 960
    assert most > window // 2


async def test_without_credit_audio_keeps_near_real_time() -> None:
    local = LocalServer({"ws_lead_seconds": 0.3})
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3)
        socket.say("input.text", text="A sentence of half a second @patches=50@. " * 3)
        socket.say("input.done")
        begun = asyncio.get_running_loop().time()
        sent = 0
        while not isinstance(message := await socket.next(), dict) or message["type"] != "session.done":
            sent += len(message) if isinstance(message, bytes) else 0
            ahead_s = sent / 96_000 - (asyncio.get_running_loop().time() - begun)
            assert ahead_s < 0.3 + 0.1
    assert sent == 3 * 50 * 960
    await local.close()


@pytest.mark.parametrize("fault", ["@fail=prefill@", "@fail=decode:9@", "@audio=none@"])
async def test_a_sentence_that_fails_is_said_and_the_next_is_spoken(local: LocalServer, fault: str) -> None:
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=3)
        socket.say("input.text", text=f"Fine @patches=3@. It fails {fault} here @patches=20@ now. Fine @patches=4@.")
        socket.say("input.done")
        came = await socket.until("session.done")
    said = [message for message in came if isinstance(message, dict)]
    (error,) = [message for message in said if message["type"] == "error"]
    assert error["sentence_index"] == 1
    assert error["code"] == "internal_error"
    started = [message["sentence_index"] for message in said if message["type"] == "audio.start"]
    done = {message["sentence_index"]: message["error"] for message in said if message["type"] == "audio.done"}
    assert started in ([0, 2], [0, 1, 2])
    assert done == {index: index == 1 for index in started}
    assert said[-1]["total_sentences"] == 3


class TestBadMessages:
    """Each is answered by an error that names the fault, and the session goes on."""

    async def works(self, socket: Socket) -> None:
        socket.say("session.config", response_format="pcm", seed=3)
        socket.say("input.text", text=SENTENCES[0])
        socket.say("input.done")
        assert audio_of(await socket.until("session.done")) == continued(SENTENCES[:1], 3)

    @pytest.mark.parametrize(
        ("message", "param"),
        [
            ("", None),
            ("not json", None),
            ("[" * 100_000, None),
            ([], None),
            (5, None),
            ({}, "type"),
            ({"type": None}, "type"),
            ({"type": "response.create"}, "type"),
            ({"type": "input.text"}, "text"),
            ({"type": "input.text", "text": 5}, "text"),
            ({"type": "input.text", "text": None}, "text"),
            ({"type": "input.text", "text": "a", "more": 1}, "more"),
            ({"type": "input.done", "text": "a"}, "text"),
            ({"type": "input.text", "text": "too early"}, "type"),
            ({"type": "input.flush"}, "type"),
            ({"type": "input.done"}, "type"),
            ({"type": "audio.read"}, "bytes"),
            ({"type": "audio.read", "bytes": 1}, "bytes"),
            ({"type": "audio.read", "bytes": -1}, "bytes"),
            ({"type": "audio.read", "bytes": "1"}, "bytes"),
            ({"type": "session.config", "input": "a"}, "input"),
            ({"type": "session.config", "stream": True}, "stream"),
            ({"type": "session.config", "stream_format": "sse"}, "stream_format"),
            ({"type": "session.config", "stream_audio": "yes"}, "stream_audio"),
            ({"type": "session.config", "max_unread_bytes": 10}, "max_unread_bytes"),
            ({"type": "session.config", "max_unread_bytes": True}, "max_unread_bytes"),
            ({"type": "session.config", "retry_badcase": True}, "retry_badcase"),
            ({"type": "session.config", "voice": "nobody"}, "voice"),
            ({"type": "session.config", "ref_audio": clip(0.01)}, "ref_audio"),
        ],
        ids=lambda value: str(value)[:50],
    )
    async def test_is_refused_by_name(self, local: LocalServer, message: Any, param: str | None) -> None:
        async with connected(local) as socket:
            socket.raw(message)
            assert (await socket.error())["param"] == param
            await self.works(socket)

    @pytest.mark.parametrize(
        ("message", "words"),
        [
            ("no json", "the message is not valid JSON"),
            ('{"type": "input.text", "text": "a", "more": 1}', "unknown field 'more'"),
            ('{"type": "session.config", "more": 1}', "unknown field 'more'"),
            ('{"type": "input.text"}', "text is missing"),
            ('{"type": "input.text", "text": "a", "text": "b"}', "text is given twice"),
            ('{"type": "session.config", "seed": 1, "seed": 2}', "seed is given twice"),
        ],
    )
    async def test_is_refused_in_the_words_of_a_request(self, local: LocalServer, message: str, words: str) -> None:
        async with connected(local) as socket:
            socket.raw(message)
            assert (await socket.error())["message"].startswith(words)

    @pytest.mark.parametrize("field", sorted(set(BAD_VALUES) - {"input", "stream", "stream_format"}))
    async def test_every_field_is_checked_as_in_a_request(self, local: LocalServer, field: str) -> None:
        async with connected(local) as socket:
            for value in BAD_VALUES[field]:
                body = {"prompt_text": "said"} if field == "prompt_audio" else {}
                socket.raw(json.dumps({"type": "session.config"} | body | {field: value}))
                assert (await socket.error())["param"] == field, value
            assert (await local.counts()).submitted == 0

    async def test_binary_is_not_understood(self, local: LocalServer) -> None:
        async with connected(local) as socket:
            socket.binary(b"\x00")
            assert "binary" in (await socket.error())["message"]
            await self.works(socket)

    async def test_text_that_waits_is_bounded(self, local: LocalServer) -> None:
        async with connected(local) as socket:
            socket.say("session.config", response_format="pcm")
            socket.say("input.text", text="x" * 4097)
            error = await socket.error()
            assert (error["code"], error["param"]) == ("too_large", "text")
            for _ in range(3):
                socket.say("input.text", text="?! " * 1300)
            socket.say("input.done")
            assert (await socket.until("session.done"))[-1]["total_sentences"] == 0

    async def test_a_fragment_is_bounded_where_texts_may_be_long(self) -> None:
        local = LocalServer({"max_input_chars": 100_000})
        async with connected(local) as socket:
            socket.say("session.config", response_format="pcm", seed=3)
            socket.say("input.text", text="x" * 16_385)
            assert (await socket.error())["code"] == "too_large"
            await self.works(socket)
        await local.close()

    async def test_messages_that_wait_are_bounded(self) -> None:
        local = LocalServer(delays={"step": 0.005})
        async with connected(local) as socket:
            socket.say("session.config", response_format="pcm", seed=1)
            socket.say("input.text", text="It never ends and ends @patches=never@ never. Then")
            await socket.until("audio.start")
            for _ in range(1100):
                socket.say("input.done")
            while isinstance(message := await socket.next(), bytes):
                pass
            assert message["code"] == "too_large"
        await local.close()


async def test_a_silent_session_is_closed() -> None:
    local = LocalServer({"ws_idle_timeout_s": 1.0}, delays={"step": 0.01})
    async with connected(local) as socket:
        socket.say("session.config", response_format="pcm", seed=1)
        socket.say("input.text", text="Longer than the patience there is @patches=150@.")
        socket.say("input.done")
        came = await socket.until("session.done")
        assert came[-1]["total_sentences"] == 1
        assert (await socket.error())["code"] == "timeout"
        assert await socket.next() is None
    await local.close()
