"""Recordings in, PCM out: decoding and resampling of what callers send, and the encoding of what they get back.

Pure functions over bytes and arrays; any thread may call them. Decoding a minute of audio takes a tenth of a second
or more, so an event loop hands it to a worker thread.

A recording may come from anyone, so nothing here trusts a header: the length limit holds while blocks are decoded (a
small file can expand to an hour), the container is recognised by its first bytes and never by what a decoder guesses
(FFmpeg would otherwise follow a playlist to other files), and what is not a usable recording ends in
:class:`~voxr_ray.errors.BadAudio` with the reason.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import av
import numpy as np
import soundfile
import soxr

from voxr_ray.errors import BadAudio, InvalidRequest, TooLarge

READABLE = "wav, flac, mp3, ogg, m4a, aac, webm"
"""The containers a recording may come in."""

_RATES_HZ = (4_000, 192_000)
_MAX_CHANNELS = 8
_BLOCK_FRAMES = 65_536
_PCM_SCALE = 32_768.0
_SILENCE_PEAK = 16 / _PCM_SCALE  # about -66 dBFS: not even a whisper survives in sixteen steps
_ABSURD_PEAK = 1e6  # floats that loud are damage, and would overflow in the resampler
_UNKNOWN_SIZE = 0x7FFF0000  # streaming writers put sizes from here up where they cannot know the length
_PRIMING_FRAMES = 4_096  # lossy codecs may trim this much at both ends of what a header declares


def decode_recording(
    data: bytes, rate_hz: int, *, max_seconds: float, min_seconds: float = 0.0, param: str | None = None
) -> np.ndarray:
    """Decode any recording to mono at one rate.

    Channels are averaged, then resampled with soxr's HQ recipe.

    Args:
        data: A whole file: wav, flac, mp3, ogg, m4a, webm, 8 to 64 bits, mono to 5.1.
        rate_hz: Rate of the result.
        max_seconds: Longest recording that is accepted; decoding stops there.
        min_seconds: Shortest recording that is accepted.
        param: Request field to name in errors.

    Returns:
        float32 ``(ceil(n * rate_hz / source rate),)`` for ``n`` source frames.

    Raises:
        BadAudio: Not audio, truncated, empty, too short, silent, or with samples that are not finite.
        TooLarge: Longer than ``max_seconds``.
    """
    try:
        mono, source_hz = _decode_mono(data, max_seconds)
    except BadAudio as error:
        raise BadAudio(error.message, param=param) from error
    except TooLarge as error:
        raise TooLarge(error.message, param=param) from error
    if len(mono) == 0:
        raise BadAudio("the recording holds no samples", param=param)
    if len(mono) < min_seconds * source_hz:
        raise BadAudio(
            f"the recording lasts {len(mono) / source_hz:.3f} s, at least {min_seconds:g} s are needed", param=param
        )
    if not np.isfinite(mono).all():
        raise BadAudio("the recording holds samples that are not finite numbers", param=param)
    peak = np.abs(mono).max()
    if peak > _ABSURD_PEAK:
        raise BadAudio(f"the recording holds samples of {peak:g}; full scale is 1", param=param)
    if peak < _SILENCE_PEAK:
        raise BadAudio("the recording is silent", param=param)
    return _resample(mono, source_hz, rate_hz)


def to_pcm16(samples: np.ndarray) -> np.ndarray:
    """Quantise to int16: ``x * 32768`` rounded half to even and clipped. Exact for samples that came from int16.

    Args:
        samples: float32 ``(samples,)``, nominally in [-1, 1].

    Returns:
        int16 ``(samples,)``.
    """
    scaled = np.rint(np.asarray(samples, dtype=np.float32) * np.float32(_PCM_SCALE))
    quantised: np.ndarray = np.clip(scaled, -32_768, 32_767).astype(np.int16)
    return quantised


def clip_of(samples: np.ndarray, source_hz: int, rate_hz: int) -> np.ndarray:
    """Audio that was made here as a recording that can be taken in again: resampled and quantised.

    Args:
        samples: float32 ``(samples,)`` at ``source_hz``.
        source_hz: Its rate.
        rate_hz: Rate of the result.

    Returns:
        int16 ``(ceil(samples * rate_hz / source_hz),)``.
    """
    return to_pcm16(_resample(samples, source_hz, rate_hz))


def pcm16_bytes(samples: np.ndarray) -> bytes:
    """Raw little-endian 16-bit PCM of float32 ``samples`` ``(samples,)``: two bytes a sample, nothing else."""
    return to_pcm16(samples).astype("<i2", copy=False).tobytes()


def wav_header(rate_hz: int, samples: int | None) -> bytes:
    """The 44 bytes before mono 16-bit PCM.

    Args:
        rate_hz: Rate of the audio.
        samples: Samples that follow, or ``None`` for a stream of unknown length: both sizes are then 0xFFFFFFFF,
            which players read as "until the end".

    Raises:
        ValueError: More samples than a WAV file can hold.
    """
    if samples is None:
        riff_bytes = data_bytes = 0xFFFFFFFF
    else:
        data_bytes = 2 * samples
        riff_bytes = 36 + data_bytes
        if riff_bytes >= 0xFFFFFFFF:
            raise ValueError(f"{samples} samples do not fit into a WAV file")
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", riff_bytes, b"WAVE", b"fmt ", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16,
        b"data", data_bytes,
    )  # fmt: skip


def container_of(data: bytes) -> str:
    """Name of the container a file is in, told from its first bytes; also the suffix such files have.

    Raises:
        BadAudio: It is none of :data:`READABLE`.
    """
    return _recognise(data).name


_DATA_URI = re.compile(r"data:(?P<type>[^,;]*)(?P<options>(?:;[^,;]*)*),(?P<body>.*)", re.DOTALL | re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def parse_audio_field(value: str, param: str) -> bytes:
    """The bytes of a recording given as base64 or as a ``data:`` URI.

    Addresses and paths are refused: this server fetches nothing on behalf of a request.

    Args:
        value: ``data:audio/wav;base64,…`` or bare base64; white space inside is ignored.
        param: Request field to name in errors.

    Raises:
        InvalidRequest: The field is neither.
        BadAudio: A data URI that holds something other than audio.
    """
    text = value.strip()
    if match := _DATA_URI.fullmatch(text):
        media_type = match["type"].strip().lower()
        if media_type and not media_type.startswith(("audio/", "video/", "application/")):
            raise BadAudio(f"{param} is a data URI of type {media_type[:60]!r}; audio is needed", param=param)
        if ";base64" not in match["options"].lower().replace(" ", ""):
            raise InvalidRequest(f"{param} is a data URI without ';base64'; base64 is needed", param=param)
        text = match["body"]
    elif _SCHEME.match(text):
        raise InvalidRequest(
            f"{param} is an address; addresses and files are not fetched: send the audio itself as base64 or as a "
            "data:audio/...;base64 URI",
            param=param,
        )
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{param} is not valid base64: {error}", param=param) from error
    if not data:
        raise InvalidRequest(f"{param} is empty", param=param)
    return data


# ---- containers -----------------------------------------------------------------------------------------------------


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


def _decode_mono(data: bytes, max_seconds: float) -> tuple[np.ndarray, int]:
    """Decode and average the channels: float32 ``(frames,)`` and their rate."""
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
    if not 1 <= channels <= _MAX_CHANNELS:
        raise BadAudio(f"the recording has {channels} channels; 1 to {_MAX_CHANNELS} are accepted")


def _tolerance(container: _Container) -> int:
    """Frames that may be missing from what a container declares."""
    return 0 if container.name in ("wav", "flac") else _PRIMING_FRAMES


def _check_wav_is_whole(data: bytes) -> None:
    """Refuse a WAV file whose data chunk is shorter than it says: libsndfile reads what is there and is silent."""
    order = ">" if data[:4] == b"RIFX" else "<"
    long_size: int | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from(f"{order}4sI", data, at)
        held = len(data) - at - 8
        if name == b"ds64" and held >= 16:
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


def _resample(mono: np.ndarray, source_hz: int, rate_hz: int) -> np.ndarray:
    """Resample float32 ``(n,)`` to exactly ``ceil(n * rate_hz / source_hz)`` samples."""
    if source_hz == rate_hz:
        return np.ascontiguousarray(mono, dtype=np.float32)
    length = -(-len(mono) * rate_hz // source_hz)
    resampled = soxr.resample(mono, source_hz, rate_hz, quality="HQ")[:length]
    return np.pad(resampled, (0, length - len(resampled))).astype(np.float32, copy=False)
