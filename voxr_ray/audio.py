"""Recordings in, PCM out: decoding and resampling of what callers send, and the encoding of what they get back.

Pure functions over bytes and arrays; any thread may call them. Decoding a minute of audio takes a tenth of a second
or more, so an event loop hands it to a worker thread.

A recording may come from anyone: :mod:`voxr_ray.decode` reads the file, and what is not a usable recording ends in
:class:`~voxr_ray.errors.BadAudio` with the reason.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct

import numpy as np
import soxr

from voxr_ray.decode import decode_mono
from voxr_ray.errors import BadAudio, InvalidRequest, TooLarge

_PCM_SCALE = 32_768.0
_SILENCE_PEAK = 16 / _PCM_SCALE  # about -66 dBFS: not even a whisper survives in sixteen steps
_ABSURD_PEAK = 1e6  # floats that loud are damage, and would overflow in the resampler


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
        mono, source_hz = decode_mono(data, max_seconds)
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


def _resample(mono: np.ndarray, source_hz: int, rate_hz: int) -> np.ndarray:
    """Resample float32 ``(n,)`` to exactly ``ceil(n * rate_hz / source_hz)`` samples."""
    if source_hz == rate_hz:
        return np.ascontiguousarray(mono, dtype=np.float32)
    length = -(-len(mono) * rate_hz // source_hz)
    resampled = soxr.resample(mono, source_hz, rate_hz, quality="HQ")[:length]
    return np.pad(resampled, (0, length - len(resampled))).astype(np.float32, copy=False)
