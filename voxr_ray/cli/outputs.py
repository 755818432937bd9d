"""Where speech goes: into a file, to standard output, or to a player.

An output is opened by its first samples. One thread at a time writes; writing may block for as long as a player plays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from voxr_ray.cli.ending import Failure

if TYPE_CHECKING:
    import numpy as np

    from voxr_ray.encode import AudioEncoder, AudioFormat

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")

SUFFIXES = {f".{name}": name for name in FORMATS} | {".ogg": "opus"}
"""Suffixes of files, and the format that each of them means."""

PLAYERS = {
    # In a WAV: how it wants to be told of raw samples changes with its version.
    "ffplay": "-nodisp -autoexit -loglevel error -i -",
    "paplay": "--raw --format=s16le --channels=1 --rate={rate}",
    "aplay": "-q -t raw -f S16_LE -c 1 -r {rate} -",
    "play": "-q -t raw -e signed-integer -b 16 -L -c 1 -r {rate} -",
}
"""Players that are looked for, in this order, and how each of them reads standard input."""


class Output(ABC):
    """Takes samples as they come."""

    live = True
    """Whether somebody may listen while it is written: audio should come as it is made."""

    @abstractmethod
    def write(self, samples: np.ndarray, rate_hz: int) -> None:
        """Take float32 ``samples`` ``(samples,)``. Their rate never changes."""

    @abstractmethod
    def close(self) -> None:
        """End the audio after what was written, which may be nothing."""

    def hush(self) -> None:  # noqa: B027 - most outputs have nothing to do here
        """Let go of a write that blocks. Any thread; :meth:`stop` comes next."""

    def stop(self) -> None:
        """End early, and keep what was written."""
        self.close()


class FileOutput(Output):
    """A file. What was there before is replaced once the first samples come.

    Args:
        path: Where.
        audio_format: As what.
    """

    live = False

    def __init__(self, path: Path, audio_format: AudioFormat) -> None:
        self._path = path
        self._format = audio_format
        self._file: BinaryIO | None = None
        self._encoder: AudioEncoder | None = None

    def write(self, samples: np.ndarray, rate_hz: int) -> None:
        """Take samples."""
        if self._encoder is None:
            from voxr_ray.encode import AudioEncoder

            self._file = _opened(self._path)
            self._encoder = AudioEncoder(self._format, rate_hz, file=self._file)
        self._encoder.encode(samples)

    def close(self) -> None:
        """Complete the file."""
        if self._encoder is not None and self._file is not None:
            self._encoder.finish()
            self._file.close()


class StdOutput(Output):
    """Standard output, a piece at a time."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._out = sys.stdout.buffer
        self._encoder: AudioEncoder | None = None

    def write(self, samples: np.ndarray, rate_hz: int) -> None:
        """Take samples."""
        if self._encoder is None:
            from voxr_ray.encode import AudioEncoder

            self._encoder = AudioEncoder(self._format, rate_hz)
        self._send(self._encoder.encode(samples))

    def close(self) -> None:
        """Send the rest."""
        if self._encoder is not None:
            self._send(self._encoder.finish())

    def _send(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()


class PlayerOutput(Output):
    """A program that plays.

    Args:
        program: Path of one of :data:`PLAYERS`.
    """

    def __init__(self, program: str) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, samples: np.ndarray, rate_hz: int) -> None:
        """Take samples."""
        from voxr_ray.audio import pcm16_bytes, wav_header

        data = pcm16_bytes(samples)
        if self._process is None:
            name = Path(self._program).name
            command = [self._program, *PLAYERS[name].format(rate=rate_hz).split()]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)  # noqa: S603
            if "{rate}" not in PLAYERS[name]:
                data = wav_header(rate_hz, None) + data
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(data)
                self._process.stdin.flush()
            except BrokenPipeError:
                self._ended()

    def close(self) -> None:
        """Wait until it has played."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # how it ended is all that counts
                self._process.stdin.close()
            if self._process.wait():
                self._ended()

    def hush(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Wait until it is gone."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait()

    def _ended(self) -> None:
        """It no longer reads: because it could not play, or because somebody closed it, which is no failure."""
        code = 0 if self._process is None else self._process.wait()
        if code > 0:
            raise Failure(f"{self._program} ended with {code}: it cannot play here; name a file with -o")
        raise BrokenPipeError


def choose_output(path: str | None, wanted: str | None, player: str | None) -> Output:
    """Where speech goes, by the options of the command line.

    Args:
        path: A file, ``-``, or ``None`` for a player.
        wanted: Format, if the suffix does not say it.
        player: Player to use, if not the first that is there.

    Raises:
        click.UsageError: They do not say it.
    """
    from voxr_ray.encode import AudioFormat

    if path is None:
        if wanted is not None:
            raise click.UsageError("--format is for files: name one with -o")
        return PlayerOutput(find_player(player))
    if player is not None:
        raise click.UsageError("--player and -o exclude each other")
    if path == "-":
        return StdOutput(AudioFormat(wanted or "wav"))
    suffix = Path(path).suffix.lower()
    if wanted is None and suffix not in SUFFIXES:
        raise click.UsageError(f"-o {path}: its suffix is no format; use {', '.join(SUFFIXES)}, or --format")
    folder = Path(path).parent
    if not folder.is_dir():
        raise click.UsageError(f"-o {path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise click.UsageError(f"-o {path} is a folder: name a file in it")
    return FileOutput(Path(path), AudioFormat(wanted or SUFFIXES[suffix]))


def find_player(name: str | None) -> str:
    """Path of a player.

    Raises:
        click.UsageError: There is none.
    """
    names = [name] if name else list(PLAYERS)
    for each in names:
        if found := shutil.which(each):
            return found
    raise click.UsageError(f"no player is on PATH ({', '.join(names)}): name a file with -o")


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("w+b")
    except OSError as error:
        raise Failure(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from error
