"""The audio an answer carries: containers, codecs, and the rate a caller asked for.

One :class:`AudioEncoder` belongs to one answer and holds all of its state; it may move between threads, but only one
may call it at a time. Encoding a second of audio takes a few milliseconds up to some tens: an event loop hands long
pieces to a worker thread.

Nothing that is encoded depends on how the samples were cut into pieces: the resampler and the codecs gather them into
frames of their own. So a streamed answer is the whole one, byte for byte, but for the headers of the three containers
that begin with a length (wav, flac, mp3): a stream cannot know its own. Nor does anything depend on the clock or on a
random number: equal samples are equal bytes.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, BinaryIO, Protocol

import av
import numpy as np
import soxr

from voxr_ray.audio import pcm16_bytes, to_pcm16, wav_header
from voxr_ray.errors import InvalidRequest

SAMPLE_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Rates a caller may ask for."""

_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)

_WAV_SAMPLES = 2**31 - 32
"""Samples whose size a WAV header can still say. Longer files keep the header of a stream."""


class AudioFormat(StrEnum):
    """Formats an answer can have; the names are OpenAI's."""

    MP3 = "mp3"
    OPUS = "opus"
    AAC = "aac"
    FLAC = "flac"
    WAV = "wav"
    PCM = "pcm"

    @property
    def media_type(self) -> str:
        """Content type of the format."""
        return "audio/mpeg" if self is AudioFormat.MP3 else f"audio/{self.value}"

    @property
    def encoding(self) -> str:
        """How a sample is written: ``s16le`` where nothing is compressed, else the codec's name."""
        return "s16le" if self in (AudioFormat.WAV, AudioFormat.PCM) else self.value

    @property
    def rates_hz(self) -> tuple[int, ...]:
        """Rates the format can carry."""
        return _OPUS_RATES_HZ if self is AudioFormat.OPUS else SAMPLE_RATES_HZ


def check_rate(audio_format: AudioFormat, rate_hz: int | None) -> None:
    """Refuse a rate that was asked for and that a format cannot carry.

    Raises:
        InvalidRequest: With ``sample_rate`` in ``param``.
    """
    if rate_hz is not None and rate_hz not in audio_format.rates_hz:
        known = ", ".join(map(str, audio_format.rates_hz))
        raise InvalidRequest(
            f"sample_rate {rate_hz} is not supported for {audio_format.value}; supported are {known}",
            param="sample_rate",
        )


def output_rate(audio_format: AudioFormat, model_hz: int, wanted_hz: int | None) -> int:
    """Rate of an answer: the one asked for, else the model's own, else the next one above that can be carried."""
    if wanted_hz is not None:
        return wanted_hz
    if audio_format in (AudioFormat.WAV, AudioFormat.PCM, AudioFormat.FLAC):
        return model_hz
    rates = audio_format.rates_hz
    return next((rate for rate in rates if rate >= model_hz), rates[-1])


class AudioEncoder:
    """Turns the samples of one answer into the bytes of its format, piece by piece.

    Args:
        audio_format: Format of the answer.
        model_hz: Rate of the samples that will come.
        rate_hz: Rate of the answer; ``None`` for the format's choice (:func:`output_rate`).
        samples: How many samples will come, if all of them are at hand: headers then say the length, and everything
            leaves with :meth:`finish`. ``None`` for a stream.
        file: A file to write into instead, at its beginning: it can be gone back in, so its headers say the length in
            the end, whatever that is. No method returns bytes then.
    """

    def __init__(
        self,
        audio_format: AudioFormat,
        model_hz: int,
        rate_hz: int | None = None,
        *,
        samples: int | None = None,
        file: BinaryIO | None = None,
    ) -> None:
        self.rate_hz = output_rate(audio_format, model_hz, rate_hz)
        self._resampler: Any = None
        if self.rate_hz != model_hz:
            self._resampler = soxr.ResampleStream(model_hz, self.rate_hz, 1, dtype="float32", quality="HQ")
        sink: _Sink | BinaryIO = file or (_Sink() if samples is None else io.BytesIO())
        self._busy = threading.Lock()
        self._writer: _Writer
        if audio_format in (AudioFormat.WAV, AudioFormat.PCM):
            self._writer = _PcmWriter(sink, self.rate_hz, wav=audio_format is AudioFormat.WAV)
        else:
            self._writer = _CodecWriter(sink, _CODECS[audio_format], self.rate_hz)

    def encode(self, samples: np.ndarray) -> bytes:
        """Take the next samples and give what is ready, which may be nothing.

        Args:
            samples: float32 ``(samples,)`` in [-1, 1].
        """
        samples = np.ascontiguousarray(samples, dtype=np.float32)
        with self._busy:
            if self._resampler is not None:
                samples = self._resampler.resample_chunk(samples)
            return self._writer.write(samples)

    def finish(self) -> bytes:
        """End the audio and give what is left of it. The encoder is of no use afterwards."""
        head = b""
        if self._resampler is not None:
            head = self._writer.write(self._resampler.resample_chunk(np.zeros(0, dtype=np.float32), last=True))
        return head + self._writer.end()

    def close(self) -> None:
        """Free the codec of an answer whose caller left; after :meth:`finish` there is nothing to do.

        The caller may have left while a thread still encodes: then the garbage collector frees it later.
        """
        if self._busy.acquire(blocking=False):
            try:
                self._writer.close()
            finally:
                self._busy.release()


def encode_whole(
    samples: np.ndarray, audio_format: AudioFormat, model_hz: int, rate_hz: int | None = None
) -> tuple[bytes, int]:
    """A complete file of float32 ``samples`` ``(samples,)``, and its rate."""
    encoder = AudioEncoder(audio_format, model_hz, rate_hz, samples=len(samples))
    data = encoder.encode(samples)
    return data + encoder.finish(), encoder.rate_hz


# ---- writers --------------------------------------------------------------------------------------------------------


class _Writer(Protocol):
    def write(self, samples: np.ndarray) -> bytes: ...

    def end(self) -> bytes: ...

    def close(self) -> None: ...


class _Sink:
    """A file that can only be written: the bytes of a stream until they are taken."""

    def __init__(self) -> None:
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._held)
        self._held.clear()
        return data


def _ready(sink: _Sink | BinaryIO) -> bytes:
    """What may leave while more is to come: nothing of what can still be changed."""
    return sink.take() if isinstance(sink, _Sink) else b""


def _rest(sink: _Sink | BinaryIO) -> bytes:
    """What is left to give in the end: nothing if the caller's own file has it."""
    return sink.getvalue() if isinstance(sink, io.BytesIO) else _ready(sink)


class _PcmWriter:
    """16-bit PCM, with a WAV header before it or without."""

    def __init__(self, sink: _Sink | BinaryIO, rate_hz: int, *, wav: bool) -> None:
        self._sink = sink
        self._rate_hz = rate_hz
        self._wav = wav
        self._started = False
        self._written = 0

    def write(self, samples: np.ndarray) -> bytes:
        self._start()
        self._sink.write(pcm16_bytes(samples))
        self._written += len(samples)
        return _ready(self._sink)

    def end(self) -> bytes:
        if not isinstance(self._sink, _Sink):
            self._start()
            if self._wav and self._written <= _WAV_SAMPLES:
                self._sink.seek(0)
                self._sink.write(wav_header(self._rate_hz, self._written))
                self._sink.seek(0, io.SEEK_END)
        return _rest(self._sink)

    def close(self) -> None:
        self._sink = _Sink()

    def _start(self) -> None:
        if self._wav and not self._started:
            self._sink.write(wav_header(self._rate_hz, None))
        self._started = True


@dataclass(frozen=True, slots=True)
class _Codec:
    """How FFmpeg makes a format.

    Attributes:
        codec: Encoder.
        container: Muxer.
        samples: Sample format of the encoder.
        bits_per_sample: Bits a second for every sample a second; 0 for the lossless.
        most_bits: Most bits a second.
        options: Options of the muxer.
        codec_options: Options of the encoder.
    """

    codec: str
    container: str
    samples: str
    bits_per_sample: float
    most_bits: int
    options: dict[str, str]
    codec_options: dict[str, str] = field(default_factory=dict)


_CODECS = {
    # Each Opus packet in a page of its own: the usual page holds a second back.
    AudioFormat.OPUS: _Codec("libopus", "ogg", "flt", 2.7, 96_000, {"page_duration": "20000"}),
    # LAME's usual effort costs twice the time of this one, and at this bit rate nobody hears it.
    AudioFormat.MP3: _Codec(
        "libmp3lame", "mp3", "fltp", 4.0, 128_000, {"id3v2_version": "0"}, {"compression_level": "7"}
    ),
    AudioFormat.AAC: _Codec("aac", "adts", "fltp", 4.0, 128_000, {}),
    AudioFormat.FLAC: _Codec("flac", "flac", "s16", 0.0, 0, {"metadata_header_padding": "0"}),
}

_RATES_OF_BITS = (32_000, 40_000, 48_000, 56_000, 64_000, 80_000, 96_000, 112_000, 128_000)
"""Bit rates every version of MPEG audio has."""

# Packets leave as they come, and nothing random or dated gets into headers.
_MUXER_OPTIONS = {"flush_packets": "1", "fflags": "+bitexact"}


class _CodecWriter:
    """A codec and its container, by FFmpeg."""

    def __init__(self, sink: _Sink | BinaryIO, codec: _Codec, rate_hz: int) -> None:
        self._codec = codec
        self._rate_hz = rate_hz
        self._written = 0
        self._sink = sink  # where it can seek, the muxer goes back to write the length into its header
        container: Any = av.open(self._sink, "w", format=codec.container, options=_MUXER_OPTIONS | codec.options)
        self._container = container
        self._stream = container.add_stream(codec.codec, rate=rate_hz, layout="mono", options=codec.codec_options)
        self._stream.codec_context.thread_count = 1
        if codec.bits_per_sample:
            wanted = min(codec.most_bits, codec.bits_per_sample * rate_hz)
            self._stream.bit_rate = max([bits for bits in _RATES_OF_BITS if bits <= wanted], default=_RATES_OF_BITS[0])

    def write(self, samples: np.ndarray) -> bytes:
        if len(samples):
            pcm = self._codec.samples == "s16"
            frame = av.AudioFrame.from_ndarray(
                (to_pcm16(samples) if pcm else np.clip(samples, -1.0, 1.0))[np.newaxis],
                format=self._codec.samples,
                layout="mono",
            )
            frame.sample_rate = self._rate_hz
            frame.pts, frame.time_base = self._written, Fraction(1, self._rate_hz)
            self._written += len(samples)
            self._mux(frame)
        return _ready(self._sink)

    def end(self) -> bytes:
        self._mux(None)
        self._container.close()
        return _rest(self._sink)

    def close(self) -> None:
        self._container.close()  # does nothing the second time

    def _mux(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
