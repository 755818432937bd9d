"""Formats: every one decodes, by decoders that are not ours, to what went in, however it was cut on the way."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.playback import MAGIC, best_match, decode, speech_like
from voxr_ray.audio import to_pcm16
from voxr_ray.encode import AudioEncoder, AudioFormat, check_rate, encode_whole, output_rate
from voxr_ray.errors import InvalidRequest

LOSSLESS = (AudioFormat.FLAC, AudioFormat.WAV, AudioFormat.PCM)


def streamed(samples: np.ndarray, audio_format: AudioFormat, sizes: Sequence[int], rate_hz: int | None = None) -> bytes:
    encoder = AudioEncoder(audio_format, 48_000, rate_hz)
    parts, at, turn = [], 0, 0
    while at < len(samples):
        size = sizes[turn % len(sizes)]
        parts.append(encoder.encode(samples[at : at + size]))
        at, turn = at + size, turn + 1
    return b"".join([*parts, encoder.finish()])


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("whole", [True, False])
def test_every_format_plays_back(audio_format: AudioFormat, whole: bool) -> None:
    samples = speech_like(2.0, 48_000)
    data = encode_whole(samples, audio_format, 48_000)[0] if whole else streamed(samples, audio_format, [7_680, 15_360])
    assert data.startswith(MAGIC[audio_format.value])
    played, rate_hz = decode(data, audio_format.value, 48_000)
    assert rate_hz == 48_000
    if audio_format in LOSSLESS:
        np.testing.assert_array_equal(to_pcm16(played), to_pcm16(samples))
    else:
        correlation, delay = best_match(samples, played)
        assert correlation > 0.98
        assert delay < 0.06 * rate_hz
        assert len(samples) <= len(played) <= len(samples) + 0.1 * rate_hz


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("rate_hz", [None, 16_000])
def test_a_file_of_unknown_length_is_the_whole_answer(
    audio_format: AudioFormat, rate_hz: int | None, tmp_path: Path
) -> None:
    samples = speech_like(0.7, 48_000)
    with (tmp_path / "spoken").open("w+b") as file:
        encoder = AudioEncoder(audio_format, 48_000, rate_hz, file=file)
        assert not b"".join(encoder.encode(samples[at : at + 997]) for at in range(0, len(samples), 997))
        assert encoder.finish() == b""
    whole = encode_whole(samples, audio_format, 48_000, rate_hz)[0]
    assert (tmp_path / "spoken").read_bytes() == whole


@pytest.mark.parametrize("audio_format", AudioFormat)
@pytest.mark.parametrize("rate_hz", [None, 16_000])
def test_bytes_do_not_depend_on_the_cut_or_the_day(audio_format: AudioFormat, rate_hz: int | None) -> None:
    samples = speech_like(0.7, 48_000)
    whole = encode_whole(samples, audio_format, 48_000, rate_hz)[0]
    cuts = [streamed(samples, audio_format, sizes, rate_hz) for sizes in ([7_680], [480, 1], [len(samples)], [997])]
    assert cuts == [cuts[0]] * len(cuts)
    if audio_format in (AudioFormat.PCM, AudioFormat.OPUS, AudioFormat.AAC):
        assert whole == cuts[0]
    else:  # the headers differ in the length they name; an mp3's is a frame of its own
        payload = {AudioFormat.WAV: cuts[0][44:], AudioFormat.FLAC: cuts[0][42:], AudioFormat.MP3: cuts[0][2_000:]}
        assert whole.endswith(payload[audio_format])
    assert encode_whole(samples, audio_format, 48_000, rate_hz)[0] == whole


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=8), rate=st.sampled_from([8_000, 22_050, 44_100]))
def test_resampling_in_pieces_is_resampling_at_once(sizes: list[int], rate: int) -> None:
    samples = speech_like(0.5, 48_000)
    expected = to_pcm16(soxr.resample(samples, 48_000, rate, quality="HQ"))
    data = streamed(samples, AudioFormat.PCM, sizes, rate)
    np.testing.assert_array_equal(np.frombuffer(data, "<i2"), expected)


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_every_rate_of_every_format(audio_format: AudioFormat) -> None:
    samples = speech_like(0.5, 48_000)
    for rate in audio_format.rates_hz:
        check_rate(audio_format, rate)
        data, given_rate = encode_whole(samples, audio_format, 48_000, rate)
        played, played_hz = decode(data, audio_format.value, rate)
        # Opus is always played at 48 kHz, whatever the encoder was given.
        assert (given_rate, played_hz) == (rate, 48_000 if audio_format is AudioFormat.OPUS else rate)
        expected = soxr.resample(soxr.resample(samples, 48_000, rate), rate, played_hz)
        assert best_match(expected, played)[0] > (0.999 if audio_format in LOSSLESS else 0.95)


def test_a_rate_a_format_cannot_carry_is_refused() -> None:
    for audio_format, rate in ((AudioFormat.OPUS, 44_100), (AudioFormat.MP3, 96_000), (AudioFormat.WAV, 0)):
        with pytest.raises(InvalidRequest, match="supported are") as caught:
            check_rate(audio_format, rate)
        assert caught.value.param == "sample_rate"


def test_without_a_wish_the_rate_is_the_models_or_the_next_that_fits() -> None:
    assert output_rate(AudioFormat.WAV, 47_000, None) == 47_000
    assert output_rate(AudioFormat.OPUS, 44_100, None) == 48_000
    assert output_rate(AudioFormat.MP3, 96_000, None) == 48_000
    assert output_rate(AudioFormat.MP3, 48_000, 16_000) == 16_000


@pytest.mark.parametrize("audio_format", AudioFormat)
def test_the_first_patch_makes_the_first_bytes(audio_format: AudioFormat) -> None:
    encoder = AudioEncoder(audio_format, 48_000)
    first = encoder.encode(speech_like(0.16, 48_000))
    assert first.startswith(MAGIC[audio_format.value])
    assert len(first) > 300


def test_lengths_in_headers_are_exact_where_they_can_be() -> None:
    samples = speech_like(0.333, 48_000)
    for audio_format in (AudioFormat.WAV, AudioFormat.FLAC, AudioFormat.MP3):
        with soundfile.SoundFile(io.BytesIO(encode_whole(samples, audio_format, 48_000)[0])) as file:
            assert file.frames == len(samples)


def test_loud_samples_are_clipped_and_not_wrapped() -> None:
    samples = np.full(48_000, 3.0, dtype=np.float32)
    for audio_format in LOSSLESS:
        played, _ = decode(encode_whole(samples, audio_format, 48_000)[0], audio_format.value, 48_000)
        assert played.min() > 0.99


def test_an_encoder_left_alone_ends_quietly() -> None:
    for audio_format in AudioFormat:
        encoder = AudioEncoder(audio_format, 48_000)
        encoder.encode(speech_like(0.2, 48_000))
        encoder.close()
        encoder.close()
    encoder = AudioEncoder(AudioFormat.MP3, 48_000)
    with encoder._busy:  # as while a thread encodes
        encoder.close()
    assert encoder.encode(speech_like(0.2, 48_000))
