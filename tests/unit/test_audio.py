"""Recordings of every kind come in as the same samples; what is no recording is refused with the reason."""

from __future__ import annotations

import base64
import io
import struct
import tracemalloc
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from voxr_ray.audio import decode_recording, parse_audio_field, pcm16_bytes, to_pcm16, wav_header
from voxr_ray.errors import BadAudio, InvalidRequest, TooLarge, VoxrError

RATE = 16_000


def tone(rate_hz: int, seconds: float = 1.0, channels: int = 1) -> np.ndarray:
    t = np.arange(int(rate_hz * seconds)) / rate_hz
    mono = (0.3 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)
    return mono if channels == 1 else np.stack([mono] * channels, axis=1)


def with_soundfile(
    container: str, subtype: str, rate_hz: int = 48_000, channels: int = 1, seconds: float = 1.0
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, tone(rate_hz, seconds, channels), rate_hz, format=container, subtype=subtype)
    return file.getvalue()


def with_ffmpeg(folder: Path, container: str, codec: str, layout: str = "mono", rate_hz: int = 48_000) -> bytes:
    path = folder / "recording.bin"
    with av.open(str(path), "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate_hz)
        stream.layout = layout
        channels = stream.codec_context.layout.nb_channels
        frame = av.AudioFrame.from_ndarray(np.stack([tone(rate_hz)] * channels), format="fltp", layout=layout)
        frame.sample_rate = rate_hz
        queue = av.AudioFifo()
        for part in av.AudioResampler(format=stream.codec_context.format, layout=layout, rate=rate_hz).resample(frame):
            queue.write(part)
        while (packet := queue.read(stream.codec_context.frame_size or 1024, True)) is not None:
            output.mux(stream.encode(packet))
        output.mux(stream.encode(None))
    return path.read_bytes()


def decode(data: bytes, **arguments: float) -> np.ndarray:
    return decode_recording(data, RATE, **({"max_seconds": 60.0} | arguments))  # type: ignore[arg-type]


def test_golden_recordings_decode_to_the_right_length(reference_data: Path) -> None:
    for path in sorted((reference_data / "encode").glob("*.*")):
        if path.suffix in (".wav", ".flac"):
            info = soundfile.info(path)
            samples = decode(path.read_bytes())
            assert samples.dtype == np.float32
            assert samples.shape == (-(-info.frames * RATE // info.samplerate),)


EXACT = [
    ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"), ("WAVEX", "PCM_16"),
    ("RF64", "PCM_16"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "subtype"), EXACT)
def test_lossless_kinds_agree(container: str, subtype: str) -> None:
    samples = decode(with_soundfile(container, subtype, RATE))
    np.testing.assert_allclose(samples, tone(RATE), atol=1 / 30_000)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_rates_and_channels_agree(rate_hz: int, channels: int) -> None:
    samples = decode(with_soundfile("WAVEX", "PCM_24", rate_hz, channels))
    assert samples.shape == (RATE,)
    middle = slice(1_000, -1_000)  # a resampler rings at the ends
    np.testing.assert_allclose(samples[middle], tone(RATE)[middle], atol=2e-3)


LOSSY = [
    ("WAV", "PCM_U8"),
    ("WAV", "ULAW"),
    ("WAV", "IMA_ADPCM"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
]


@pytest.mark.parametrize(("container", "subtype"), LOSSY)
def test_lossy_kinds_sound_alike(container: str, subtype: str) -> None:
    _sounds_like_the_tone(decode(with_soundfile(container, subtype)))


FFMPEG = [("ipod", "aac", "mono"), ("ipod", "aac", "5.1"), ("webm", "libopus", "stereo"), ("adts", "aac", "mono"),
          ("mp3", "libmp3lame", "stereo"), ("wav", "pcm_s64le", "mono"), ("ogg", "libopus", "mono")]  # fmt: skip


@pytest.mark.parametrize(("container", "codec", "layout"), FFMPEG)
def test_containers_of_ffmpeg_sound_alike(tmp_path: Path, container: str, codec: str, layout: str) -> None:
    _sounds_like_the_tone(decode(with_ffmpeg(tmp_path, container, codec, layout)))


def _sounds_like_the_tone(samples: np.ndarray) -> None:
    assert RATE <= len(samples) < RATE + 1_500
    spectrum = np.abs(np.fft.rfft(samples[2_000:14_000]))
    assert abs(np.argmax(spectrum) * RATE / 12_000 - 440) < 2
    assert 0.25 < np.sqrt(2 * np.mean(samples[2_000:14_000] ** 2)) < 0.35


@pytest.mark.parametrize(("container", "subtype"), [*EXACT, ("WAV", "PCM_U8"), ("OGG", "VORBIS"), ("OGG", "OPUS"),
                                                    ("MP3", "MPEG_LAYER_III")])  # fmt: skip
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_truncated_files_are_refused(container: str, subtype: str, share: float) -> None:
    data = with_soundfile(container, subtype)
    with pytest.raises(BadAudio, match=r"truncated|cannot be decoded|no samples|damaged"):
        decode(data[: int(len(data) * share)])


@pytest.mark.parametrize(("container", "codec"), [("ipod", "aac"), ("webm", "libopus"), ("wav", "pcm_s64le")])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_files_of_ffmpeg_are_refused(tmp_path: Path, container: str, codec: str, share: float) -> None:
    data = with_ffmpeg(tmp_path, container, codec)
    with pytest.raises(BadAudio, match=r"truncated|cannot be decoded"):
        decode(data[: int(len(data) * share)])


@pytest.mark.parametrize(("container", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
                                                    ("MP3", "MPEG_LAYER_III")])  # fmt: skip
def test_the_length_limit_holds(container: str, subtype: str) -> None:
    data = with_soundfile(container, subtype, seconds=3)
    assert len(decode(data, max_seconds=3.2)) >= 3 * RATE
    with pytest.raises(TooLarge, match=r"longer than 2\.5 s"):
        decode(data, max_seconds=2.5)


def test_an_hour_in_a_small_file_costs_no_memory() -> None:
    hour = io.BytesIO()
    with soundfile.SoundFile(hour, "w", 8_000, 1, format="FLAC", subtype="PCM_16") as file:
        minute = np.zeros(8_000 * 60, dtype=np.int16)
        minute[::7] = 3_000
        for _ in range(60):
            file.write(minute)
    data = hour.getvalue()
    assert len(data) < 6_000_000
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decode(data, max_seconds=60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20, "one minute of float32 at 8 kHz is 2 MB, an hour 115"


def test_too_short_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadAudio, match=r"0\.050 s, at least 0\.1 s"):
        decode(with_soundfile("WAV", "PCM_16", seconds=0.05), min_seconds=0.1)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_U8", "FLOAT"])
def test_silence_is_refused(subtype: str) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8_000), 8_000, format="WAV", subtype=subtype)
    with pytest.raises(BadAudio, match="silent"):
        decode(file.getvalue())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused(bad: float) -> None:
    samples = tone(8_000)
    samples[1_234] = bad
    file = io.BytesIO()
    soundfile.write(file, samples, 8_000, format="WAV", subtype="FLOAT")
    with pytest.raises(BadAudio, match="not finite"):
        decode(file.getvalue())


def test_absurdly_loud_samples_are_refused() -> None:
    file = io.BytesIO()
    soundfile.write(file, tone(8_000) * 1e30, 8_000, format="WAV", subtype="FLOAT")
    with pytest.raises(BadAudio, match="full scale"):
        decode(file.getvalue())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"RIFF",
        b"hello, this is text",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00",
        b"OggS",
        b"ID3" + bytes(200),
        b"\x1a\x45\xdf\xa3" + bytes(200),
        b"\x00\x00\x00\x18ftypM4A " + bytes(200),
        b"fLaC" + bytes(100),
        wav_header(16_000, 0),
    ],
)
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(BadAudio):
        decode(data)


@pytest.mark.parametrize(("rate_hz", "channels"), [(1, 1), (1_000_000, 1), (16_000, 200)])
def test_absurd_headers_are_refused(rate_hz: int, channels: int) -> None:
    data = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + 40_000, b"WAVE", b"fmt ", 16, 1, channels, rate_hz,
                       rate_hz * 2 * channels, 2 * channels, 16, b"data", 40_000) + bytes(range(250)) * 160  # fmt: skip
    with pytest.raises(BadAudio, match=r"rate|channels|cannot be decoded"):
        decode(data)


@pytest.mark.parametrize("channels", [0, 9, 1025, 65_535])
def test_a_number_of_channels_that_is_refused_is_named(channels: int) -> None:
    """Decoders call what they do not take "0 channels"."""
    data = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + 40_000, b"WAVE", b"fmt ", 16, 1, channels, 16_000,
                       32_000, 2 * channels % 65_536, 16, b"data", 40_000) + bytes(40_000)  # fmt: skip
    with pytest.raises(BadAudio, match=f"has {channels} channels; 1 to 8 are accepted"):
        decode(data)


def test_the_error_names_the_field() -> None:
    with pytest.raises(BadAudio) as caught:
        decode_recording(b"nothing", RATE, max_seconds=1, param="ref_audio")
    assert caught.value.param == "ref_audio"


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["WAV", "FLAC", "OGG", "MP3"]), st.data())
def test_damaged_files_never_escape_the_error_tree(container: str, data: st.DataObject) -> None:
    subtype = {"WAV": "PCM_16", "FLAC": "PCM_16", "OGG": "VORBIS", "MP3": "MPEG_LAYER_III"}[container]
    damaged = bytearray(with_soundfile(container, subtype, 8_000, seconds=0.2))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        samples = decode(bytes(damaged), max_seconds=5)
    except VoxrError:
        return
    assert samples.dtype == np.float32
    assert np.isfinite(samples).all()


@given(st.lists(st.integers(-32_768, 32_767), min_size=1))
def test_int16_survives_the_round_trip(values: list[int]) -> None:
    original = np.array(values, dtype=np.int16)
    np.testing.assert_array_equal(to_pcm16(original.astype(np.float32) / 32_768), original)


def test_quantising_rounds_half_to_even_and_clips() -> None:
    given_ = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 40_000, -40_000], dtype=np.float32) / 32_768
    assert to_pcm16(given_).tolist() == [0, 2, 2, 0, -2, 32_767, -32_768]
    assert pcm16_bytes(given_[:2]) == b"\x00\x00\x02\x00"


def test_a_buffered_wav_has_exact_sizes() -> None:
    data = wav_header(48_000, 4_800) + pcm16_bytes(tone(48_000, 0.1))
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (
            1,
            2,
            48_000,
            4_800,
        )
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    with pytest.raises(ValueError, match="do not fit"):
        wav_header(48_000, 2**31)


def test_our_own_streamed_wav_can_come_back_as_a_recording() -> None:
    data = wav_header(16_000, None) + pcm16_bytes(tone(16_000))
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff"
    np.testing.assert_allclose(decode(data), tone(16_000), atol=1 / 30_000)


def test_base64_and_data_uris_are_read() -> None:
    raw = bytes(range(256))
    text = base64.b64encode(raw).decode()
    for value in (text, f"  {text[:50]}\n{text[50:]} ", f"data:audio/wav;base64,{text}", f"data:;base64,{text}",
                  f"DATA:audio/webm; codecs=opus;base64,{text}"):  # fmt: skip
        assert parse_audio_field(value, "ref_audio") == raw


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("data:audio/wav;base64,", "empty"),
        ("not base64!", "not valid base64"),
        ("abc", "not valid base64"),
        ("äöü", "not valid base64"),
        ("data:audio/wav,abcd", "without ';base64'"),
        ("http://127.0.0.1/a.wav", "not fetched"),
        ("https://example.org/a.wav", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("s3://bucket/a.wav", "not fetched"),
        ("/etc/passwd", "not"),
    ],
)
def test_other_values_of_an_audio_field_are_refused(value: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse_audio_field(value, "ref_audio")
    assert caught.value.param == "ref_audio"


def test_a_data_uri_of_something_else_is_refused() -> None:
    with pytest.raises(BadAudio, match="'image/png'"):
        parse_audio_field("data:image/png;base64,AAAA", "ref_audio")
