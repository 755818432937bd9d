"""Named voices over HTTP, without Ray: stored whole or not at all, found everywhere at once, gone at once."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.serve.local import LocalServer
from tests.unit.serve.test_speech_http import refusal
from tests.unit.serve.voice_files import recording
from voxr_ray.serve import voice_store

TEXT = "spoken @patches=4@"


async def upload(local: LocalServer, name: Any = "alice", audio: bytes | None = None, **texts: str) -> httpx.Response:
    return await local.client.post(
        "/v1/audio/voices",
        data={"name": name} | texts,
        files={"audio_sample": ("a.wav", recording() if audio is None else audio)},
    )


async def names(local: LocalServer) -> list[str]:
    return [voice["id"] for voice in (await local.client.get("/v1/audio/voices")).json()["voices"]]


def uri(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


async def spoken(local: LocalServer, **fields: Any) -> bytes:
    answer = await local.speak(**({"input": TEXT, "seed": 1} | fields))
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.fixture
def folder(local: LocalServer) -> Path:
    return Path(local.settings.voices_dir)


async def test_a_voice_is_added_listed_used_and_deleted(local: LocalServer) -> None:
    answer = await upload(local, consent="she agreed")
    assert answer.status_code == 200
    card = answer.json()
    assert set(card) >= {"object", "id", "name", "created_at"}
    assert (card["object"], card["id"], card["name"]) == ("audio.voice", "alice", "alice")
    listed = (await local.client.get("/v1/audio/voices")).json()["voices"]
    assert [(voice["id"], voice["name"]) for voice in listed] == [("default", "default"), ("alice", "alice")]
    assert listed[1] == card
    with_field = await spoken(local, ref_audio=uri(recording()))
    for voice in ("alice", "ALICE", {"id": "alice"}):
        assert await spoken(local, voice=voice) == with_field
    answer = await local.client.delete("/v1/audio/voices/Alice")
    assert (answer.status_code, answer.json()["deleted"], answer.json()["id"]) == (200, True, "alice")
    assert refusal(await local.speak(input=TEXT, voice="alice"), 404)["code"] == "voice_not_found"
    assert refusal(await local.client.delete("/v1/audio/voices/alice"), 404)["param"] == "name"
    assert await names(local) == ["default"]


async def test_a_transcript_makes_it_a_beginning_too(local: LocalServer) -> None:
    assert (await upload(local, ref_text="what is said")).json()["has_transcript"] is True
    as_fields = await spoken(local, ref_audio=uri(recording()), ref_text="what is said")
    assert await spoken(local, voice="alice") == as_fields
    other = recording(5)
    own_prompt: dict[str, Any] = {"prompt_audio": uri(other), "prompt_text": "said"}
    assert await spoken(local, voice="alice", **own_prompt) == await spoken(
        local, ref_audio=uri(recording()), **own_prompt
    )
    styled = {"instructions": "calm"}
    assert await spoken(local, voice="alice", **styled) == await spoken(local, ref_audio=uri(recording()), **styled)


async def test_two_references_are_one_too_many(local: LocalServer) -> None:
    await upload(local)
    assert refusal(await local.speak(input=TEXT, voice="alice", ref_audio=uri(recording())))["param"] == "voice"
    answer = await local.speak(input=TEXT, voice="default", ref_audio=uri(recording()))
    assert answer.status_code == 200


async def test_the_same_name_with_other_audio_is_the_other_audio(local: LocalServer) -> None:
    """R7: nothing along the way may remember what the name meant before."""
    for seed in (1, 2, 1, 3):
        assert (await upload(local, audio=recording(seed))).status_code == 200
        assert await spoken(local, voice="alice") == await spoken(local, ref_audio=uri(recording(seed)))
        await local.client.delete("/v1/audio/voices/alice")


async def test_a_name_that_is_taken_keeps_its_recording(local: LocalServer, folder: Path) -> None:
    await upload(local, "Alice", recording(1))
    for name in ("Alice", "alice", "ALICE"):
        error = refusal(await upload(local, name, recording(2, kind="FLAC")), 409)
        assert (error["code"], error["param"]) == ("voice_exists", "name")
    assert sorted(path.name for path in folder.iterdir()) == ["Alice.json", "Alice.wav"]
    assert (folder / "Alice.wav").read_bytes() == recording(1)


async def test_twenty_uploads_at_once_all_survive(local: LocalServer, folder: Path) -> None:
    files = [recording(n, kind=("WAV", "FLAC", "OGG")[n % 3]) for n in range(20)]
    answers = await asyncio.gather(*(upload(local, f"voice {n}", file) for n, file in enumerate(files)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert len(await names(local)) == 21
    for n, file in enumerate(files):
        (audio,) = [path for path in folder.iterdir() if path.stem == f"voice {n}" and path.suffix != ".json"]
        assert audio.read_bytes() == file
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


async def test_of_two_writers_of_one_name_one_wins(local: LocalServer, folder: Path) -> None:
    answers = await asyncio.gather(*(upload(local, "same", recording(n)) for n in range(8)))
    statuses = [answer.status_code for answer in answers]
    assert sorted(statuses) == [200] + [409] * 7
    assert (folder / "same.wav").read_bytes() == recording(statuses.index(200))


async def test_voices_survive_a_restart(local: LocalServer, folder: Path) -> None:
    card = (await upload(local, consent="yes", ref_text="said")).json()
    before = await spoken(local, voice="alice")
    again = LocalServer({"voices_dir": str(folder)})
    assert (await again.client.get("/v1/audio/voices")).json()["voices"][1] == card
    assert await spoken(again, voice="alice") == before
    assert json.loads((folder / "alice.json").read_text())["consent"] == "yes"
    await again.close()


async def test_two_servers_on_one_folder_agree_at_once(local: LocalServer, folder: Path) -> None:
    other = LocalServer({"voices_dir": str(folder)})
    for seed in (1, 2):
        await upload(local, audio=recording(seed))
        expected = await spoken(local, ref_audio=uri(recording(seed)))
        assert await spoken(other, voice="alice") == expected
        assert await spoken(local, voice="alice") == expected
        await other.client.delete("/v1/audio/voices/alice")
        assert (await local.speak(input=TEXT, voice="alice")).status_code == 404
    await other.close()


async def test_files_of_the_operator_are_voices(local: LocalServer, folder: Path) -> None:
    folder.mkdir()
    for kind, suffix in (("WAV", "wav"), ("FLAC", "flac"), ("MP3", "mp3"), ("OGG", "ogg")):
        (folder / f"from-{suffix}.{suffix}").write_bytes(recording(7, kind=kind))
    (folder / "from-wav.txt").write_text("said\n")
    (folder / "from-flac.txt").write_text("  \n")
    (folder / "broken.wav").write_bytes(b"RIFF")
    for skipped in ("default.wav", ".hidden.wav", "b\u00e4r.wav", "notes.txt", "a.b.wav", "-x.wav"):
        (folder / skipped).write_bytes(recording())
    (folder / "folder.wav").mkdir()
    assert await names(local) == ["default", "broken", "from-flac", "from-mp3", "from-ogg", "from-wav"]
    flac = uri(recording(7, kind="FLAC"))
    assert await spoken(local, voice="from-flac") == await spoken(local, ref_audio=flac)
    assert await spoken(local, voice="from-wav") == await spoken(local, ref_audio=uri(recording(7)), ref_text="said")
    for name in ("from-mp3", "from-ogg"):
        assert await spoken(local, voice=name)
    error = refusal(await local.speak(input=TEXT, voice="broken"))
    assert (error["code"], error["param"]) == ("bad_audio", "voice")
    (folder / "from-wav.wav").write_bytes(recording(8))
    (folder / "from-wav.txt").unlink()
    assert await spoken(local, voice="from-wav") == await spoken(local, ref_audio=uri(recording(8)))
    (folder / "from-wav.wav").unlink()
    assert (await local.speak(input=TEXT, voice="from-wav")).status_code == 404


async def test_twins_go_together(local: LocalServer, folder: Path) -> None:
    folder.mkdir()
    (folder / "twin.wav").write_bytes(recording(1))
    (folder / "twin.flac").write_bytes(recording(2, kind="FLAC"))
    (folder / "Twin.WAV").write_bytes(recording(3))
    (folder / "twin.txt").write_text("")
    (folder / "twins.wav").write_bytes(recording(4))
    await local.client.delete("/v1/audio/voices/twins")
    seeds = (1, 3)
    assert await spoken(local, voice="twin") in [await spoken(local, ref_audio=uri(recording(n))) for n in seeds]
    await local.client.delete("/v1/audio/voices/twin")
    assert await names(local) == ["default"]
    assert list(folder.iterdir()) == []


async def test_what_a_crash_leaves_is_no_voice_and_no_burden(local: LocalServer, folder: Path) -> None:
    folder.mkdir()
    (folder / "half.json").write_text("{not json")
    (folder / "half.txt").write_text("of another recording")
    (folder / ".abc.part").write_bytes(b"RIFF")
    assert await names(local) == ["default"]
    assert (await upload(local, "half")).json()["has_transcript"] is False
    assert await spoken(local, voice="half") == await spoken(local, ref_audio=uri(recording()))


async def test_an_unknown_name_shows_some_that_are_known(local: LocalServer) -> None:
    for n in range(12):
        await upload(local, f"voice{n:02}")
    message = refusal(await local.speak(input=TEXT, voice="nobody"), 404)["message"]
    assert "'nobody'" in message
    assert "default, voice00, voice01" in message
    assert "and 2 more" in message
    long = refusal(await local.speak(input=TEXT, voice="x" * 10_000_000), 404)["message"]
    assert len(long) < 400


ESCAPES = ["../x", "a/b", "a\\b", "/etc/x", ".hidden", "..", ".", "a.b", "a\x00b", "a\nb", "~", "%2e%2e", "Ä", "a:b"]


@pytest.mark.parametrize("name", [*ESCAPES, "x" * 65, "", " ", " a", "a ", "-a", "default", "DEFAULT"])
async def test_a_name_cannot_leave_the_folder(local: LocalServer, folder: Path, name: str) -> None:
    assert refusal(await upload(local, name))["param"] == "name"
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize("path", ["..%2Fx", "%2e%2e", "a%2Fb", "..", "%00", "x" * 5000, "default", "nobody"])
async def test_deleting_cannot_leave_it_either(local: LocalServer, folder: Path, path: str) -> None:
    folder.mkdir()
    outside = folder.parent / "x.wav"
    outside.write_bytes(recording())
    answer = await local.client.delete(f"/v1/audio/voices/{path}")
    assert answer.status_code in (400, 404, 405)
    assert "error" in answer.json()
    assert outside.exists()


@pytest.mark.parametrize(
    ("audio", "code"),
    [
        (b"not audio at all", "bad_audio"),
        (b"", "bad_audio"),
        (recording(seconds=0.9), "bad_audio"),
        (recording(seconds=61), "too_large"),
        (recording(peak=0.0), "bad_audio"),
        (recording()[:-100], "bad_audio"),
        (recording(kind="FLAC")[:300], "bad_audio"),
    ],
    ids=["text", "empty", "short", "long", "silent", "truncated", "cut flac"],
)
async def test_what_cannot_be_used_is_not_stored(local: LocalServer, folder: Path, audio: bytes, code: str) -> None:
    error = refusal(await upload(local, audio=audio))
    assert (error["code"], error["param"]) == (code, "audio_sample")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({}, {"audio_sample": recording()}, "name"),
        ({"name": "a"}, {}, "audio_sample"),
        ({"name": "a", "ref_text": ""}, {"audio_sample": recording()}, "ref_text"),
        ({"name": "a", "ref_text": " \n"}, {"audio_sample": recording()}, "ref_text"),
        ({"name": "a", "ref_text": "x" * 4097}, {"audio_sample": recording()}, "ref_text"),
        ({"name": "a", "consent": " "}, {"audio_sample": recording()}, "consent"),
        ({"name": "a", "consent": "x" * 1001}, {"audio_sample": recording()}, "consent"),
        ({"name": "a", "speaker": "x"}, {"audio_sample": recording()}, "speaker"),
        ({"name": ["a", "b"]}, {"audio_sample": recording()}, "name"),
        ({"name": "a", "audio_sample": "text"}, {"x": b""}, "audio_sample"),
        ({"audio_sample": "text"}, {"name": b"a"}, "audio_sample"),
        ({"name": "a", "ref_text": "x" * 70_000}, {"audio_sample": recording()}, "ref_text"),
        ({}, {"name": b"a", "audio_sample": recording()}, "name"),
        ({"name": "a", "ref_text": "x", "consent": "y", "speaker": "z"}, {"audio_sample": recording()}, "speaker"),
    ],
)
async def test_a_bad_form_is_refused_by_field(
    local: LocalServer, folder: Path, fields: dict[str, Any], files: dict[str, bytes], param: str
) -> None:
    parts = {name: (name, data) for name, data in files.items()} or {"": ("", b"")}
    answer = await local.client.post(
        "/v1/audio/voices", data=fields, files=parts if files else {"consent": (None, "x")}
    )
    assert refusal(answer)["param"] == param
    assert not folder.exists()


async def test_two_recordings_are_refused_by_field(local: LocalServer, folder: Path) -> None:
    files = [("audio_sample", (name, recording())) for name in ("a.wav", "b.wav")]
    error = refusal(await local.client.post("/v1/audio/voices", data={"name": "a"}, files=files))
    assert (error["param"], error["message"]) == ("audio_sample", "audio_sample is given twice")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content_type", "status"),
    [(None, 415), ("application/json", 415), ("multipart/form-data", 400), ("multipart/form-data; boundary=x", 400)],
)
async def test_what_is_no_form_is_refused(local: LocalServer, content_type: str | None, status: int) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    refusal(await local.client.post("/v1/audio/voices", content=b'{"name": "a"}', headers=headers), status)


async def test_an_upload_is_bounded_however_it_is_sent(local: LocalServer, folder: Path) -> None:
    refusal(await upload(local, audio=bytes(11 * 2**20)), 413)
    sent = 0

    async def for_ever() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'--x\r\ncontent-disposition: form-data; name="audio_sample"; filename="a"\r\n\r\n'
        while sent < 100 * 2**20:
            sent += 2**20
            yield bytes(2**20)

    headers = {"content-type": "multipart/form-data; boundary=x"}
    refusal(await local.client.post("/v1/audio/voices", content=for_ever(), headers=headers), 413)
    assert sent < 13 * 2**20
    assert not folder.exists()


async def test_the_number_of_voices_is_bounded() -> None:
    local = LocalServer({"max_voices": 2})
    statuses = [(await upload(local, f"voice{n}")).status_code for n in range(3)]
    assert statuses == [200, 200, 400]
    await local.close()


async def test_a_folder_that_cannot_be_written_is_a_server_error(local: LocalServer, folder: Path) -> None:
    folder.write_bytes(b"a file in its place")
    assert refusal(await upload(local), 500)["message"].startswith("the folder of voices cannot be read")
    refusal(await local.client.get("/v1/audio/voices"), 500)
    refusal(await local.speak(input=TEXT, voice="alice"), 500)
    assert (await local.speak(input=TEXT)).status_code == 200


async def test_a_disk_that_fails_leaves_no_half_of_a_voice(
    local: LocalServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        if path.suffix == ".wav":
            raise OSError(28, "No space left on device")
        path.write_bytes(data)

    monkeypatch.setattr(voice_store, "write_whole", fail)
    error = refusal(await upload(local, ref_text="said"), 500)
    assert error["message"] == "the voice could not be stored: No space left on device"
    assert await names(local) == ["default"]
    monkeypatch.undo()
    assert (await upload(local)).json()["has_transcript"] is False


@pytest.fixture
async def shipping(tmp_path: Path) -> AsyncIterator[LocalServer]:
    """A server whose model comes with a voice."""
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "amy.wav").write_bytes(recording(5))
    server = LocalServer({"model": str(tmp_path), "max_voices": 1})
    yield server
    await server.close()


async def test_voices_that_come_with_a_model_are_ready(shipping: LocalServer) -> None:
    assert await names(shipping) == ["default", "amy"]
    assert await spoken(shipping, voice="Amy") == await spoken(shipping, ref_audio=uri(recording(5)))
    assert (await upload(shipping, "bob")).status_code == 200, "they do not count against max_voices"
    assert await names(shipping) == ["default", "amy", "bob"]


async def test_voices_that_come_with_a_model_are_not_changed_from_outside(shipping: LocalServer) -> None:
    error = refusal(await upload(shipping, "AMY"), 409)
    assert (error["code"], error["param"]) == ("voice_exists", "name")
    assert "comes with the model" in error["message"]
    error = refusal(await shipping.client.delete("/v1/audio/voices/amy"), 400)
    assert "comes with the model" in error["message"]
    assert await names(shipping) == ["default", "amy"]


async def test_an_operators_file_goes_before_a_voice_that_comes_with_the_model(shipping: LocalServer) -> None:
    folder = Path(shipping.settings.voices_dir)
    folder.mkdir(parents=True)
    (folder / "amy.wav").write_bytes(recording(6))
    assert await names(shipping) == ["default", "amy"]
    assert await spoken(shipping, voice="amy") == await spoken(shipping, ref_audio=uri(recording(6)))
