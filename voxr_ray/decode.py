"""Files to samples: which container a recording is in, whether it is whole, and its decoding.

Pure functions over bytes; any thread may call them. A recording may come from anyone, so nothing here trusts a header:
the length limit holds while blocks are decoded (a small file can expand to an hour), and the container is recognised
by its first bytes and never by what a decoder guesses (FFmpeg would otherwise follow a playlist to other files).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import av
import numpy as np
import soundfile

from voxr_ray.errors import BadAudio, TooLarge

READABLE = "wav, flac, mp3, ogg, m4a, aac, webm"
"""The containers a recording may come in."""

_RATES_HZ = (4_000, 192_000)
_MAX_CHANNELS = 8
_BLOCK_FRAMES = 65_536
_UNKNOWN_SIZE = 0x7FFF0000  # streaming writers put sizes from here up where they cannot know the length
_PRIMING_FRAMES = 4_096  # lossy codecs may trim this much at both ends of what a header declares


def container_of(data: bytes) -> str:
    """Name of the container a file is in, told from its first bytes; also the suffix such files have.

    Raises:
        BadAudio: It is none of :data:`READABLE`.
    """
    return _recognise(data).name


@dataclass(frozen=True, slots=True)
class _Container:
    """A container and who reads it.

    Attributes:
        name: Its name in messages.
        ffmpeg: The one FFmpeg demuxer that may open it.
        soundfile: Whether libsndfile is tried first.
    """

    name: str
    ffmpeg: str
    soundfile: bool


def _recognise(data: bytes) -> _Container:
    """Tell the container from its first bytes."""
    head = data[:16]
    if head[:4] in (b"RIFF", b"RF64", b"RIFX") and head[8:12] == b"WAVE":
        return _Container("wav", "wav", soundfile=True)
    if head[:4] == b"fLaC":
        return _Container("flac", "flac", soundfile=True)
    if head[:4] == b"OggS":
        return _Container("ogg", "ogg", soundfile=True)
    if head[4:8] == b"ftyp":
        return _Container("m4a", "mov", soundfile=False)
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _Container("webm", "matroska", soundfile=False)
    if head[:2] in (b"\xff\xf1", b"\xff\xf9"):
        return _Container("aac", "aac", soundfile=False)
    if head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0):
        return _Container("mp3", "mp3", soundfile=True)
    raise BadAudio(f"this is not a recording that can be read here ({READABLE})")


def decode_mono(data: bytes, max_seconds: float) -> tuple[np.ndarray, int]:
    """Decode a file and average its channels.

    Args:
        data: A whole file in one of the containers :data:`READABLE`.
        max_seconds: Longest recording that is accepted; decoding stops there.

    Returns:
        float32 ``(frames,)``, and their rate.

    Raises:
        BadAudio: It cannot be read, or less of it is there than it declares.
        TooLarge: It is longer than ``max_seconds``.
    """
    if not data:
        raise BadAudio("the recording is empty")
    container = _recognise(data)
    if container.name == "wav":
        _check_wav_is_whole(data)
    elif container.name == "ogg":
        _check_ogg_is_whole(data)
    if container.soundfile:
        try:
            return _decode_soundfile(data, container, max_seconds)
        except soundfile.LibsndfileError:
            # Codecs libsndfile does not know (64-bit integers, Opus in odd layouts, ADPCM kinds): FFmpeg may.
            pass
    return _decode_ffmpeg(data, container, max_seconds)


def _decode_soundfile(data: bytes, container: _Container, max_seconds: float) -> tuple[np.ndarray, int]:
    with soundfile.SoundFile(io.BytesIO(data)) as source:
        rate_hz, channels, declared = source.samplerate, source.channels, source.frames
        _check_format(rate_hz, channels)

        def blocks() -> Iterator[np.ndarray]:
            while len(block := source.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)):
                yield block.mean(axis=1)

        try:
            mono = _collect(blocks(), rate_hz, max_seconds)
        except soundfile.LibsndfileError as error:
            raise BadAudio(f"the {container.name} recording is damaged or truncated: {error}") from error
    # An unknown length shows as a number near 2^63.
    if declared < 2**48 and len(mono) + _tolerance(container) < declared:
        raise BadAudio(
            f"the {container.name} recording is truncated: it declares {declared} frames and holds {len(mono)}"
        )
    return mono, rate_hz


def _decode_ffmpeg(data: bytes, container: _Container, max_seconds: float) -> tuple[np.ndarray, int]:
    try:
        with closing(av.open(io.BytesIO(data), mode="r", format=container.ffmpeg, metadata_errors="ignore")) as source:
            stream = next(iter(source.streams.audio), None)
            if stream is None or stream.codec_context is None:
                raise BadAudio(f"the {container.name} file holds no audio of a known kind")
            rate_hz, channels = stream.codec_context.sample_rate, stream.codec_context.channels
            _check_format(rate_hz, channels)
            declared = 0
            if container.name in ("m4a", "webm") and source.duration:  # microseconds; elsewhere FFmpeg only guesses
                declared = source.duration * rate_hz // 1_000_000
            # Only the sample format changes here: channels stay apart, for the average is ours to take.
            to_float = av.AudioResampler(format="fltp")

            def blocks() -> Iterator[np.ndarray]:
                for frame in source.decode(stream):
                    if frame.sample_rate != rate_hz:
                        raise BadAudio(f"the {container.name} recording changes its rate on the way")
                    for plane in to_float.resample(frame):
                        yield plane.to_ndarray().mean(axis=0, dtype=np.float32)

            mono = _collect(blocks(), rate_hz, max_seconds)
    except (av.FFmpegError, ValueError) as error:
        # FFmpeg's own words ("[Errno 1] Operation not permitted") mislead whoever sent the file; the log has them.
        raise BadAudio(f"the {container.name} recording is damaged and cannot be decoded") from error
    if len(mono) + _tolerance(container) < declared:
        raise BadAudio(
            f"the {container.name} recording is truncated: it declares {declared} frames and holds {len(mono)}"
        )
    return mono, rate_hz


def _collect(blocks: Iterator[np.ndarray], rate_hz: int, max_seconds: float) -> np.ndarray:
    """Concatenate mono blocks, stopping at the limit."""
    most = int(max_seconds * rate_hz)
    kept: list[np.ndarray] = []
    frames = 0
    for block in blocks:
        frames += len(block)
        if frames > most:
            raise TooLarge(f"the recording is longer than {max_seconds:g} s, the most that is accepted")
        kept.append(block)
    return np.concatenate(kept) if kept else np.zeros(0, dtype=np.float32)


def _check_format(rate_hz: int, channels: int) -> None:
    low, high = _RATES_HZ
    if not low <= rate_hz <= high:
        raise BadAudio(f"the recording's rate is {rate_hz} Hz; {low} to {high} Hz are accepted")
    _check_channels(channels)


def _check_channels(channels: int) -> None:
    if not 1 <= channels <= _MAX_CHANNELS:
        raise BadAudio(f"the recording has {channels} channels; 1 to {_MAX_CHANNELS} are accepted")


def _tolerance(container: _Container) -> int:
    """Frames that may be missing from what a container declares."""
    return 0 if container.name in ("wav", "flac") else _PRIMING_FRAMES


def _check_wav_is_whole(data: bytes) -> None:
    """Refuse a WAV file whose data chunk is shorter than it says: libsndfile reads what is there and is silent.

    Also one of too many channels, while their number is known: FFmpeg says none instead.
    """
    order = ">" if data[:4] == b"RIFX" else "<"
    long_size: int | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from(f"{order}4sI", data, at)
        held = len(data) - at - 8
        if name == b"fmt " and held >= 4:
            _check_channels(struct.unpack_from(f"{order}H", data, at + 10)[0])
        elif name == b"ds64" and held >= 16:
            long_size = struct.unpack_from("<Q", data, at + 16)[0]
        elif name == b"data":
            declared = long_size if long_size is not None else size if size < _UNKNOWN_SIZE else held
            if held < declared:
                raise BadAudio(f"the wav recording is truncated: it declares {declared} bytes and holds {held}")
            return
        at += 8 + size + size % 2
    raise BadAudio("the wav recording is truncated: it has no audio data")


def _check_ogg_is_whole(data: bytes) -> None:
    """Refuse an Ogg file cut inside a page: decoders drop that page and are silent.

    A missing end-of-stream mark alone is no fault: live recorders leave it out.
    """
    at = data.rfind(b"OggS")
    header = data[at : at + 27]
    segments = data[at + 27 : at + 27 + header[26]] if len(header) == 27 else b""
    if len(header) < 27 or len(segments) < header[26] or at + 27 + len(segments) + sum(segments) > len(data):
        raise BadAudio("the ogg recording is truncated: its last page is incomplete")
