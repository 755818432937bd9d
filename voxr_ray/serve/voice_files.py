"""The files of voices: which there are, what they say, and how new ones are written so that they last.

Plain functions over paths; any thread, the order of writes is the :class:`~voxr_ray.serve.voice_store.VoiceStore`'s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from voxr_ray.serve.values import VoiceInfo
from voxr_ray.serve.voice_names import is_name, key_of

_log = logging.getLogger(__name__)

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".m4a", ".aac", ".webm")
"""Files that count as recordings; the first of this order wins where two have one name."""


@dataclass(frozen=True, slots=True)
class VoiceFiles:
    """Where a voice is.

    Attributes:
        name: Its name, as its recording is called.
        audio: The recording.
    """

    name: str
    audio: Path

    @property
    def text(self) -> Path:
        """Its transcript."""
        return self.audio.with_suffix(".txt")

    @property
    def facts(self) -> Path:
        """What is known of it."""
        return self.audio.with_suffix(".json")


def read_index(folder: Path) -> dict[str, VoiceFiles]:
    """The voices in a folder, by the key of their name."""
    found: dict[str, VoiceFiles] = {}
    unusable = []
    paths = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    for path in sorted(paths, key=lambda path: (SUFFIXES.index(path.suffix.lower()), path.name)):
        if not is_name(path.stem) or not path.is_file():
            unusable.append(path.name)
        else:
            found.setdefault(key_of(path.stem), VoiceFiles(path.stem, path))
    if unusable:
        _log.warning("%d recordings have no name a voice can have, such as %r", len(unusable), unusable[0][:80])
    return found


def info_of(files: VoiceFiles) -> VoiceInfo | None:
    """Facts of a voice; ``None`` if it is gone."""
    try:
        created_at_s = int(files.audio.stat().st_mtime)
    except OSError:
        return None
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
        created_at_s = int(json.loads(files.facts.read_bytes())["created_at"])
    return VoiceInfo(files.name, created_at_s, text_of(files) is not None)


def text_of(files: VoiceFiles) -> str | None:
    """What its recording says, if that is known."""
    try:
        return files.text.read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; ``None`` if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, whatever happens meanwhile."""
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
