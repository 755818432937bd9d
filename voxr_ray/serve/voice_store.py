"""The folder of voices: recordings, transcripts and what is known of them. Plain files, no Ray, any thread.

A voice is a recording (``alice.wav``) with an optional transcript (``alice.txt``) and, for those added here, its
facts (``alice.json``). The recording makes the voice: it is put in place last and taken away first, so a crash
between two files leaves no half of a voice, only a remainder that the next upload of that name clears away.

The folder is the only truth. Nothing is trusted beyond the stamps the file system gives: the index is read again when
the folder has changed, a decoded clip when its files have. So files that an operator puts there work at once, and a
second owner (the old one during an upgrade) does no harm.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from voxr_ray.audio import decode_recording, to_pcm16
from voxr_ray.decode import container_of
from voxr_ray.errors import BadAudio, EngineError, InvalidRequest, TooLarge, VoiceExists
from voxr_ray.messages import Recording
from voxr_ray.serve.values import VoiceClip, VoiceInfo
from voxr_ray.serve.voice_files import (
    SUFFIXES,
    VoiceFiles,
    info_of,
    read_index,
    stamp_of,
    sync_folder,
    text_of,
    write_whole,
)
from voxr_ray.serve.voice_names import check_name, key_of, unknown_voice

MAX_VOICE_BYTES = 10 * 2**20
"""Largest recording of a voice."""

MIN_VOICE_SECONDS = 1.0
"""Shortest recording of a new voice: less does not hold one."""

_CHECK_RATE_HZ = 16_000
_MAX_CONSENT_CHARS = 1000
_MAX_TEXT_CHARS = 4096
_CLIP_CACHE_BYTES = 64 * 2**20
_COARSE_S = 2.0
"""File systems may round times this much: a folder that changed so recently may change again unseen."""


class VoiceStore:
    """One folder of voices.

    Args:
        folder: Where they are; made when the first is added.
        max_seconds: Longest recording that can be spoken with.
        max_voices: Most recordings the folder may hold.
        shipped: A second folder, of voices that come with the model: they are read once and never written.
    """

    def __init__(self, folder: Path, *, max_seconds: float, max_voices: int, shipped: Path | None = None) -> None:
        self._folder = folder
        self._max_seconds = max_seconds
        self._max_voices = max_voices
        self._shipped = {} if shipped is None else read_index(shipped)
        self._lock = threading.Lock()
        self._index: dict[str, VoiceFiles] = {}
        self._index_stamp: tuple[int, ...] | None = None
        self._clips: OrderedDict[tuple[Any, ...], VoiceClip] = OrderedDict()

    def list(self) -> list[VoiceInfo]:
        """All voices by name."""
        with self._lock:
            found = sorted(self._all().values(), key=lambda files: key_of(files.name))
        return [info for files in found if (info := info_of(files)) is not None]

    def find(self, name: str, rate_hz: int, known_version: str | None = None) -> VoiceClip | None:
        """A voice as it is now.

        Args:
            name: Its name, in any case.
            rate_hz: Rate of the clip.
            known_version: Version the caller holds.

        Returns:
            The voice; ``None`` if the caller has it already.

        Raises:
            UnknownVoice: There is none of that name (any more).
            BadAudio: The operator's file cannot be used.
        """
        with self._lock:
            voices = self._all()
            files = voices.get(key_of(name))
            known = [each.name for each in voices.values()]
        if files is None:
            raise unknown_voice(name, known)
        try:
            clip = self._clip(files, rate_hz)
        except FileNotFoundError:
            raise unknown_voice(name, [each for each in known if each != files.name]) from None
        return None if clip.version == known_version else clip

    def add(self, name: str, audio: bytes, text: str | None = None, consent: str | None = None) -> VoiceInfo:
        """Check a recording and store it: once this returns, it survives a power cut.

        Args:
            name: Name of the new voice.
            audio: A file: wav, flac, mp3, ogg, m4a, aac or webm.
            text: What it says.
            consent: Kept in its facts, for whoever has to account for the recording.

        Raises:
            InvalidRequest: The name cannot be used, or a text is blank.
            VoiceExists: The name is taken. Of two who add it at once, one gets this.
            BadAudio: The recording cannot be used.
            TooLarge: The recording, a text, or the number of voices is over its limit.
        """
        check_name(name)
        self._check_new(audio, text, consent)
        info = VoiceInfo(name, int(time.time()), text is not None)
        with self._lock:
            if (taken := self._shipped.get(key_of(name))) is not None:
                raise VoiceExists(f"voice {taken.name!r} comes with the model: choose another name", param="name")
            index = self._scan(fresh=True)
            if key_of(name) in index:
                raise VoiceExists(
                    f"a voice is named {index[key_of(name)].name!r} already: delete it first", param="name"
                )
            if len(index) >= self._max_voices:
                raise TooLarge(f"{len(index)} voices are stored; at most {self._max_voices} are (setting max_voices)")
            files = VoiceFiles(name, self._folder / f"{name}.{container_of(audio)}")
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_whole(files.facts, json.dumps({"created_at": info.created_at_s, "consent": consent}).encode())
                if text is None:
                    files.text.unlink(missing_ok=True)
                else:
                    write_whole(files.text, text.encode())
                write_whole(files.audio, audio)
                sync_folder(self._folder)
            except OSError as error:
                raise EngineError(f"the voice could not be stored: {error.strerror}") from error
            self._index_stamp = None
        return info

    def delete(self, name: str) -> VoiceInfo:
        """Remove a voice and all that is known of it; nobody can ask for it once this returns.

        Raises:
            UnknownVoice: There is none of that name.
            InvalidRequest: It comes with the model.
        """
        with self._lock:
            index = self._scan(fresh=True)
            files = index.get(key_of(name))
            if files is None and (own := self._shipped.get(key_of(name))) is not None:
                raise InvalidRequest(f"voice {own.name!r} comes with the model and cannot be deleted", param="name")
            info = None if files is None else info_of(files)
            if files is None or info is None:
                raise unknown_voice(name, [each.name for each in index.values()], param="name")
            try:
                # Twins under another suffix or in other capitals would come to light otherwise.
                named = [path for path in self._folder.iterdir() if key_of(path.stem) == key_of(files.name)]
                for suffixes in (SUFFIXES, (".txt", ".json")):
                    for path in named:
                        if path.suffix.lower() in suffixes:
                            path.unlink(missing_ok=True)
                    sync_folder(self._folder)
            except OSError as error:
                raise EngineError(f"the voice could not be deleted: {error.strerror}") from error
            self._index_stamp = None
            for key in [key for key in self._clips if key[0] == files.audio]:
                del self._clips[key]
        return info

    def _check_new(self, audio: bytes, text: str | None, consent: str | None) -> None:
        if len(audio) > MAX_VOICE_BYTES:
            raise TooLarge(
                f"the recording has {len(audio)} bytes; at most {MAX_VOICE_BYTES} are accepted", param="audio_sample"
            )
        for value, param, most in ((text, "ref_text", _MAX_TEXT_CHARS), (consent, "consent", _MAX_CONSENT_CHARS)):
            if value is not None and not value.strip():
                raise InvalidRequest(f"{param} is blank: leave it out", param=param)
            if value is not None and len(value) > most:
                raise TooLarge(f"{param} has {len(value)} characters; at most {most} are accepted", param=param)
        decode_recording(
            audio, _CHECK_RATE_HZ, min_seconds=MIN_VOICE_SECONDS, max_seconds=self._max_seconds, param="audio_sample"
        )

    def _all(self) -> dict[str, VoiceFiles]:
        """Voices by key. A file that the operator put into the folder goes before a voice that comes with the model."""
        return self._shipped | self._scan()

    def _scan(self, *, fresh: bool = False) -> dict[str, VoiceFiles]:
        """The index, read again if the folder may have changed. Under the lock."""
        try:
            stat = self._folder.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns)
            if fresh or stamp != self._index_stamp:
                self._index = read_index(self._folder)
                settled = time.time() - stat.st_mtime > _COARSE_S
                self._index_stamp = stamp if settled else None
        except FileNotFoundError:
            self._index, self._index_stamp = {}, None
        except OSError as error:
            raise EngineError(f"the folder of voices cannot be read: {error.strerror}") from error
        return self._index

    def _clip(self, files: VoiceFiles, rate_hz: int) -> VoiceClip:
        key = (files.audio, rate_hz, stamp_of(files.audio), stamp_of(files.text))
        with self._lock:
            if (known := self._clips.get(key)) is not None:
                self._clips.move_to_end(key)
                return known
        try:
            samples = decode_recording(files.audio.read_bytes(), rate_hz, max_seconds=self._max_seconds)
        except (BadAudio, TooLarge) as error:
            raise BadAudio(f"voice {files.name!r} cannot be used: {error.message}", param="voice") from error
        recording = Recording.of_clip(to_pcm16(samples), rate_hz)
        text = text_of(files)
        version = hashlib.sha256(f"{recording.digest}:{text}".encode()).hexdigest()
        clip = VoiceClip(files.name, version, recording, text)
        with self._lock:
            self._clips[key] = clip
            while len(self._clips) > 1 and sum(_bytes(each) for each in self._clips.values()) > _CLIP_CACHE_BYTES:
                self._clips.popitem(last=False)
        return clip


def _bytes(clip: VoiceClip) -> int:
    return 0 if clip.recording.clip is None else clip.recording.clip.nbytes
