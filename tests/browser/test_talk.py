"""The page to talk to, as somebody uses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.browser.looking import (
    LENIENT,
    STATE,
    TEN,
    Site,
    colours,
    played,
    speak,
    stopping_after,
    until,
    wait_for_picture,
    wait_for_sound,
    wait_for_take,
    wait_until_idle,
)
from tests.playback import MAGIC, decode
from tests.unit.serve.serving import running
from tests.unit.serve.voice_files import recording


def test_type_and_hear(talk: Any) -> None:
    assert (colours(talk, "#wave"), colours(talk, "#spectrum")) == (1, 1)
    assert talk.is_disabled("#play")
    speak(talk, TEN)
    wait_for_take(talk)
    talk.wait_for_selector("#take:not([data-playing])")
    assert talk.get_attribute("#take", "data-player") == "worklet"
    assert played(talk) == 10 * 7680, "every sample, once"
    wait_for_picture(talk, "#wave", 3)
    wait_for_picture(talk, "#spectrum", 20)
    assert talk.inner_text("#status") == "1.6 s of speech."
    assert talk.inner_text("#clock") == "1.6 / 1.6 s"
    assert talk.inner_text("#fact-first").endswith(" ms") or talk.inner_text("#fact-first").endswith(" s")
    assert float(talk.inner_text("#fact-rtf").split()[0]) > 0
    assert talk.is_hidden("#error")


def test_sound_begins_with_the_first_chunk(talk: Any, site: Site) -> None:
    with stopping_after(site[1], 4):
        speak(talk, TEN)
        wait_for_sound(talk)
        assert talk.get_attribute("#take", "data-state") == "speaking", "while most of it is still to be made"
        assert talk.inner_text("#go-label") == "Stop"
        wait_for_picture(talk, "#spectrum", 20)
        until(talk, "document.getElementById('fact-gaps').textContent === '1'")
    wait_for_take(talk)


def test_a_take_can_be_heard_again_and_searched(talk: Any) -> None:
    speak(talk, TEN)
    wait_for_take(talk)
    talk.wait_for_selector("#take:not([data-playing])")
    talk.click("#play")
    wait_for_sound(talk, 10 * 7680 + 1)
    talk.click("#play")
    talk.wait_for_selector("#take:not([data-playing])")
    box = talk.locator("#stage").bounding_box()
    talk.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    until(talk, "Math.abs(document.getElementById('seek').value - 0.8) < 0.02")
    talk.fill("#seek", "0.2")
    until(talk, "document.getElementById('clock').textContent.startsWith('0.2 ')")


def test_cancel_frees_the_slot(talk: Any, site: Site) -> None:
    before = site[1].replica._engine.snapshot().record.counts
    with stopping_after(site[1], 4):
        speak(talk, TEN)
        wait_for_sound(talk)
        talk.click("#go")
        talk.wait_for_selector(STATE.format("done"))
        assert talk.inner_text("#status").startswith("Stopped after ")
        assert talk.inner_text("#go-label") == "Speak"
        assert talk.is_hidden("#downloads"), "an incomplete take is no file"
        assert talk.is_hidden("#error"), "to stop is no error"
    wait_until_idle(site[1])
    after = site[1].replica._engine.snapshot().record.counts
    assert after.cancelled == before.cancelled + 1
    speak(talk, TEN)
    wait_for_take(talk)
    assert talk.inner_text("#status") == "1.6 s of speech."


def test_every_format_is_a_download_of_the_same_take(talk: Any, tmp_path: Path) -> None:
    speak(talk, TEN)
    wait_for_take(talk)
    seed = talk.inner_text("#fact-seed")
    heard = {}
    for audio_format, magic in MAGIC.items():
        with talk.expect_download() as download:
            talk.click(f"#downloads button:text-is('{audio_format}')")
        assert download.value.suggested_filename == f"speech-{seed}.{audio_format}"
        download.value.save_as(tmp_path / audio_format)
        data = (tmp_path / audio_format).read_bytes()
        assert data.startswith(magic)
        heard[audio_format], _ = decode(data, audio_format, 48_000)
    for lossless in ("wav", "flac"):
        assert np.array_equal(heard[lossless], heard["pcm"])
    assert len(heard["pcm"]) == 10 * 7680


@pytest.mark.parametrize("tab", ["curl", "python"])
@pytest.mark.parametrize("clip", [False, True], ids=["named", "recording"])
def test_the_code_shown_makes_the_take_that_was_heard(talk: Any, tmp_path: Path, tab: str, clip: bool) -> None:
    text = 'It\'s "50 %" \\ of $HOME, 好!\nNext `line` @patches=4@'
    talk.click("summary:has-text('Advanced')")
    for field, value in {"#text": text, "#seed": "7", "#cfg": "3.5", "#steps": "12", "#style": "it's calm"}.items():
        talk.fill(field, value)
    talk.select_option("#rate", "24000")
    talk.select_option("#code-format", "wav")
    if clip:
        (tmp_path / "recording.wav").write_bytes(recording())
        talk.set_input_files("#file", tmp_path / "recording.wav")
        talk.wait_for_selector("#clip:not([hidden])")
    talk.click(f"#tab-{tab}")
    code = talk.inner_text("#code-text")
    command = [sys.executable, "-c", code] if tab == "python" else ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    talk.click("#go")
    wait_for_take(talk)
    with talk.expect_download() as download:
        talk.click("#downloads button:text-is('wav')")
    download.value.save_as(tmp_path / "heard.wav")
    assert (tmp_path / "speech.wav").read_bytes() == (tmp_path / "heard.wav").read_bytes()


def test_upload_keep_use_and_delete_a_voice(talk: Any, site: Site, tmp_path: Path) -> None:
    file = tmp_path / "alice.wav"
    file.write_bytes(recording(3))
    talk.set_input_files("#file", file)
    talk.wait_for_selector("#clip:not([hidden])")
    assert talk.inner_text("#clip-facts") == "1.5 s"
    assert colours(talk, "#clip-wave") > 2
    assert talk.is_checked("input[name=voice] >> nth=-1"), "what was brought is chosen"
    talk.click("summary:has-text('Keep it')")
    talk.fill("#voice-name", "Alice")
    talk.click("#save-voice")
    assert "consent" in talk.inner_text("#voice-said")
    talk.check("#consent")
    talk.click("#save-voice")
    until(talk, "document.getElementById('voice-said').textContent.includes('stored')")
    assert talk.is_checked("input[value=Alice]")
    assert talk.is_hidden("#clip")
    assert "Alice" in [voice["name"] for voice in httpx.get(f"{site[0]}v1/audio/voices").json()["voices"]]
    with talk.expect_request("**/v1/audio/speech") as asked:
        speak(talk, TEN)
    assert asked.value.post_data_json["voice"] == "Alice"
    wait_for_take(talk)

    talk.set_input_files("#file", file)
    talk.click("summary:has-text('Keep it')")
    talk.fill("#voice-name", "alice")
    talk.check("#consent")
    talk.click("#save-voice")
    talk.wait_for_selector("#voice-said.bad")
    assert talk.inner_text("#voice-said").startswith("A voice of that name exists already.")

    delete = talk.get_by_label("Delete the voice Alice")
    delete.click()
    assert delete.inner_text() == "Really?"
    delete.click()
    talk.wait_for_selector("input[value=Alice]", state="detached")
    assert len(httpx.get(f"{site[0]}v1/audio/voices").json()["voices"]) == 1


def test_a_dropped_recording_is_used_once(talk: Any, site: Site) -> None:
    data = recording(5)
    talk.evaluate(
        """(bytes) => {
            const held = new DataTransfer();
            held.items.add(new File([new Uint8Array(bytes)], "dropped.wav", { type: "audio/wav" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true }));
        }""",
        list(data),
    )
    talk.wait_for_selector("#clip:not([hidden])")
    talk.fill("#style", "calm")
    talk.fill("#ref-text", "What it says.")
    assert talk.is_disabled("#style"), "a style steers nothing beside a transcript"
    with talk.expect_request("**/v1/audio/speech") as asked:
        speak(talk, TEN)
    body = asked.value.post_data_json
    assert body["ref_text"] == "What it says."
    assert "voice" not in body
    assert "instructions" not in body
    wait_for_take(talk)
    assert talk.inner_text("#status") == "1.6 s of speech."
    assert len(httpx.get(f"{site[0]}v1/audio/voices").json()["voices"]) == 1, "nothing is stored"


def test_a_recording_from_the_microphone(talk: Any) -> None:
    talk.click("#record")
    until(talk, "document.getElementById('record-label').textContent.includes('2 s')")
    talk.click("#record")
    talk.wait_for_selector("#clip:not([hidden])")
    assert float(talk.inner_text("#clip-facts").split()[0]) >= 1
    assert colours(talk, "#clip-wave") > 2
    speak(talk, TEN)
    wait_for_take(talk)
    assert talk.inner_text("#status") == "1.6 s of speech.", talk.inner_text("#error")


def test_a_damaged_recording_is_explained(talk: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_bytes(b"RIFF" + bytes(400))
    talk.set_input_files("#file", tmp_path / "broken.wav")
    talk.wait_for_selector("#clip:not([hidden])")
    assert "no preview" in talk.inner_text("#clip-facts")
    speak(talk, TEN)
    talk.wait_for_selector("#error:not([hidden])")
    assert talk.inner_text("#error-title") == "This recording cannot be used."


def test_a_refusal_points_at_its_field(talk: Any) -> None:
    talk.click("summary:has-text('Advanced')")
    talk.fill("#cfg", "11")
    talk.click("summary:has-text('Advanced')")
    speak(talk, TEN)
    talk.wait_for_selector("#error:not([hidden])")
    assert "10" in talk.inner_text("#error-text"), "the server's own words, which name the limit"
    assert talk.get_attribute("#cfg", "aria-invalid") == "true"
    assert talk.evaluate("document.activeElement.id") == "cfg"
    talk.fill("#cfg", "2")
    assert talk.get_attribute("#cfg", "aria-invalid") is None
    talk.click("#go")
    wait_for_take(talk)
    assert talk.is_hidden("#error")


def test_blank_text_is_refused(talk: Any) -> None:
    speak(talk, "  ")
    talk.wait_for_selector("#error:not([hidden])")
    assert talk.inner_text("#error-title") == "This text cannot be spoken as it is."
    assert talk.evaluate("document.activeElement.id") == "text"


def test_a_broken_stream_keeps_what_was_heard(talk: Any) -> None:
    speak(talk, "Fails @patches=60@@fail=decode:20@@sleep=step:0.02@")
    talk.wait_for_selector("#error:not([hidden])")
    assert talk.inner_text("#error-title") == "The connection broke off."
    assert "can be played" in talk.inner_text("#error-text")
    assert talk.is_enabled("#play")
    assert talk.is_hidden("#downloads")


def test_a_full_server_says_when_to_try_again(visit: Callable[..., Any]) -> None:
    with running({"max_batch": 1, "max_queue": 0}, delays={"step": 0.02}) as (address, local):
        page = visit(f"http://{address}/")
        body = {"input": "A long one @patches=never@", "stream": True, "response_format": "pcm"} | LENIENT
        with httpx.stream("POST", f"http://{address}/v1/audio/speech", json=body, timeout=60) as busy:
            audio = busy.iter_bytes()  # held: to let go of it is to leave
            next(audio)
            speak(page, TEN)
            page.wait_for_selector("#error:not([hidden])")
            assert page.inner_text("#error-title") == "Every slot is taken right now."
            assert "Try again in" in page.inner_text("#error-text")
        wait_until_idle(local)
        page.click("#error-again")
        wait_for_take(page)
        assert page.is_hidden("#error")


def test_a_server_that_is_gone_is_said_to_be(visit: Callable[..., Any]) -> None:
    with running({}) as (address, _):
        page = visit(f"http://{address}/")
    speak(page, TEN)
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error-title") == "The server cannot be reached."


def test_without_worklets_the_page_plays_all_the_same(visit: Callable[..., Any], site: Site) -> None:
    # As browsers do on pages that came over plain http from another machine.
    hide = "Object.defineProperty(BaseAudioContext.prototype, 'audioWorklet', { get() { return undefined; } });"
    page = visit(site[0], script=hide)
    speak(page, TEN)
    wait_for_take(page)
    page.wait_for_selector("#take:not([data-playing])")
    assert page.get_attribute("#take", "data-player") == "script"
    assert played(page) == 10 * 7680
