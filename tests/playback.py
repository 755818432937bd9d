"""Playing answers back with decoders that are not ours (libsndfile, FFmpeg), and comparing what is heard."""

from __future__ import annotations

import io

import av
import numpy as np
import soundfile

MAGIC: dict[str, bytes | tuple[bytes, ...]] = {
    "mp3": (b"\xff\xfb", b"\xff\xf3", b"\xff\xe3"),
    "opus": b"OggS",
    "aac": b"\xff\xf1",
    "flac": b"fLaC",
    "wav": b"RIFF",
    "pcm": b"",
}
"""First bytes of a file of each format."""

MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def decode(data: bytes, audio_format: str, rate_hz: int) -> tuple[np.ndarray, int]:
    """Samples float32 ``(samples,)`` and rate of a file. ``rate_hz`` is that of raw PCM, which does not say it."""
    if audio_format == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32_768.0, rate_hz
    if audio_format == "wav":
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        return samples, rate
    container = {"opus": "ogg", "aac": "aac"}.get(audio_format, audio_format)
    with av.open(io.BytesIO(data), format=container) as file:
        to_float = av.AudioResampler(format="fltp")
        planes, rate = [], 0
        for frame in file.decode(audio=0):
            rate = frame.sample_rate
            planes += [plane.to_ndarray()[0] for plane in to_float.resample(frame)]
    return np.concatenate(planes), rate


def speech_like(seconds: float, rate_hz: int, seed: int = 0) -> np.ndarray:
    """A voice without words, float32: harmonics of a gliding pitch under two formants, in syllables, with breath."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate_hz)) / rate_hz
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.9 * time)) / rate_hz
    voice = np.zeros_like(time)
    for harmonic in range(1, 25):
        hertz = 120 * harmonic
        weight = np.exp(-(((hertz - 500) / 300) ** 2)) + 0.5 * np.exp(-(((hertz - 1500) / 400) ** 2)) + 0.05
        voice += weight * np.sin(harmonic * phase + rng.uniform(0, 6))
    syllables = 0.15 + 0.85 * np.clip(np.sin(2 * np.pi * 3.5 * time), 0, 1)
    voice = voice * syllables + 0.01 * rng.standard_normal(len(time))
    return (0.6 * voice / np.abs(voice).max()).astype(np.float32)


def best_match(original: np.ndarray, played: np.ndarray) -> tuple[float, int]:
    """Correlation of ``original`` with ``played`` at the best delay, and that delay in samples."""
    size = 1 << (len(original) + len(played)).bit_length()
    product = np.fft.irfft(np.fft.rfft(played, size) * np.conj(np.fft.rfft(original, size)), size)
    delay = int(np.argmax(product[: max(1, len(played))]))
    shared = min(len(original), len(played) - delay)
    return float(np.corrcoef(original[:shared], played[delay : delay + shared])[0, 1]), delay
