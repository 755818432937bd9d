"""What the fields of ``POST /v1/audio/speech`` mean together, and the request they make.

Pure functions; any thread. Types are checked by :class:`~voxr_ray.serve.speech_body.SpeechBody`, the ranges of
model parameters by :class:`~voxr_ray.messages.SynthRequest`, so that there is one place for each. Every field that is
accepted has an effect; a combination without a meaning is refused by the name of a field in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from voxr_ray.audio import decode_recording, parse_audio_field, to_pcm16
from voxr_ray.config import Settings
from voxr_ray.encode import AudioFormat, check_rate
from voxr_ray.errors import InvalidRequest, TooLarge
from voxr_ray.messages import Prompt, Recording, Reference, SynthRequest
from voxr_ray.serve.defaults import RENDER_FIELDS
from voxr_ray.serve.http_errors import UnknownModel, from_validation
from voxr_ray.serve.remote import AudioLink, link_of
from voxr_ray.serve.speech_body import STREAM_FORMATS, SpeechBody, refuse_repeats
from voxr_ray.serve.spelling import LANGUAGES, Language, can_spell, check_spelling, is_installed
from voxr_ray.serve.text import compose, is_speakable
from voxr_ray.serve.voice_names import DEFAULT_VOICE, key_of

_Clip = bytes | AudioLink


@dataclass(frozen=True, slots=True)
class Speech:
    """A checked speech request whose recordings are still files.

    Attributes:
        request: The request without recordings.
        audio_format: Format of the answer.
        stream: Whether the answer streams.
        sse: Whether it streams as server-sent events.
        sample_rate_hz: Rate of the answer; ``None`` for the model's.
        reference: File of the voice to imitate, if any, or where it is.
        prompt: File to continue from, if any, or where it is. The same object as ``reference`` where one clip is both.
        prompt_text: What ``prompt`` says.
        reference_text: What ``reference`` says, if it is continued from as well, before ``prompt``.
        prompt_param: Field that ``prompt`` came in.
        voice: Name of a stored voice to look up; ``None`` for the model's own.
        styled: Whether the text begins with instructions.
    """

    request: SynthRequest
    audio_format: AudioFormat
    stream: bool
    reference: bytes | AudioLink | None = None
    prompt: bytes | AudioLink | None = None
    prompt_text: str = ""
    reference_text: str | None = None
    prompt_param: str = "prompt_audio"
    voice: str | None = None
    styled: bool = False
    sse: bool = False
    sample_rate_hz: int | None = None

    @property
    def has_recordings(self) -> bool:
        """Whether :meth:`with_recordings` has work to do."""
        return self.reference is not None or self.prompt is not None

    def with_recordings(self, rate_hz: int, settings: Settings) -> SynthRequest:
        """Decode the recordings, files by now: the complete request. Takes up to a second; not for an event loop.

        Args:
            rate_hz: The model's input rate.
            settings: Limits on recordings.

        Raises:
            BadAudio: A file cannot be used.
            TooLarge: A recording is too long.
        """

        def decode(data: bytes | AudioLink, param: str) -> np.ndarray:
            if isinstance(data, AudioLink):
                raise TypeError("links are fetched first")
            seconds = settings.min_reference_seconds, settings.max_reference_seconds
            samples = decode_recording(data, rate_hz, min_seconds=seconds[0], max_seconds=seconds[1], param=param)
            return to_pcm16(samples)

        reference = prompt = None
        clip: np.ndarray | None = None
        if self.reference is not None:
            clip = decode(self.reference, "ref_audio")
            reference = Reference.of_clip(clip, rate_hz)
        if self.prompt is not None:
            text, lead = self.prompt_text, clip
            if clip is None or self.prompt is not self.reference:
                clip = decode(self.prompt, self.prompt_param)
            if self.reference_text is not None and lead is not None:
                clip = _joined(lead, clip, rate_hz, settings)
                text = f"{self.reference_text} {text}"
            recording = Recording.of_clip(clip, rate_hz)
            prompt = Prompt(digest=recording.digest, clip=recording.clip, text=text)
        return self.request.model_copy(update={"reference": reference, "prompt": prompt})


def parse_speech(body: bytes, settings: Settings, request_id: str) -> Speech:
    """Read and check the JSON body of a speech request.

    Args:
        body: The body as it came.
        settings: Limits, defaults and the model's name.
        request_id: Follows the request through logs.

    Raises:
        RequestError: With the field at fault in ``param``.
    """
    try:
        fields = SpeechBody.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from error
    refuse_repeats(body)
    if fields.model is not None and fields.model not in settings.model_names:
        raise unknown_model(fields.model, settings)
    _check_text(fields.input, "input", settings)
    if not is_speakable(fields.input):
        raise InvalidRequest("input holds nothing to pronounce: give at least one letter or number", param="input")
    if fields.speed is not None and fields.speed != 1.0:
        raise InvalidRequest(f"speed {fields.speed:g} is not supported; 1.0 is", param="speed")
    voice = _stored_voice(fields)
    stream, sse = _streaming(fields)
    audio_format = _audio_format(fields)
    check_rate(audio_format, fields.sample_rate)
    _check_retries(fields, stream)
    reference, prompt, texts, prompt_param = _clips(fields, settings)
    normalize = _normalize(fields, settings)
    if fields.instructions is not None:
        _check_text(fields.instructions, "instructions", settings)
        if prompt is not None:
            raise InvalidRequest(
                "instructions cannot steer a continuation: leave out the transcript (ref_text or prompt_text) or them",
                param="instructions",
            )
    _check_lengths(fields)
    own = {name: getattr(fields, name) for name in RENDER_FIELDS}
    chosen = {name: getattr(settings, name) if value is None else value for name, value in own.items()}
    try:
        request = SynthRequest(
            text=compose(fields.input, fields.instructions),
            seed=fields.seed,
            normalize=normalize,
            request_id=request_id,
            **chosen,
        )
    except ValidationError as error:
        raise from_validation(error) from error
    return Speech(
        request,
        audio_format,
        stream,
        reference=reference,
        prompt=prompt,
        prompt_text=texts[1],
        reference_text=texts[0],
        prompt_param=prompt_param,
        voice=voice,
        styled=fields.instructions is not None,
        sse=sse,
        sample_rate_hz=fields.sample_rate,
    )


def unknown_model(name: str, settings: Settings) -> UnknownModel:
    """The refusal of a model's name."""
    known = ", ".join(map(repr, settings.model_names))
    return UnknownModel(f"model {name[:80]!r} is not served here; served is {known}", param="model")


def _streaming(fields: SpeechBody) -> tuple[bool, bool]:
    """Whether the answer streams, and whether as events."""
    if fields.stream_format not in (None, *STREAM_FORMATS):
        known = ", ".join(STREAM_FORMATS)
        raise InvalidRequest(
            f"stream_format {fields.stream_format[:40]!r} is not supported; supported are {known}",
            param="stream_format",
        )
    sse = fields.stream_format == "sse"
    if sse and fields.stream is False:
        raise InvalidRequest("stream is false, but stream_format 'sse' is a stream: leave one out", param="stream")
    return sse or bool(fields.stream), sse


def _check_text(text: str, param: str, settings: Settings) -> None:
    if not text.strip():
        raise InvalidRequest(f"{param} is blank", param=param)
    if len(text) > settings.max_input_chars:
        raise TooLarge(
            f"{param} has {len(text)} characters; at most {settings.max_input_chars} are accepted", param=param
        )


def _stored_voice(fields: SpeechBody) -> str | None:
    """Name of the voice to look up, if it is not the model's own."""
    if fields.voice is None or key_of(fields.voice) == DEFAULT_VOICE:
        return None
    if not fields.voice.strip():
        raise InvalidRequest("voice is blank", param="voice")
    if fields.ref_audio is not None:
        raise InvalidRequest("voice and ref_audio each name a voice: leave one of them out", param="voice")
    return fields.voice


def _check_retries(fields: SpeechBody, stream: bool) -> None:
    if stream and fields.retry_badcase:
        raise InvalidRequest("retry_badcase needs stream = false: sent audio cannot be taken back",
                             param="retry_badcase")  # fmt: skip
    if fields.retry_badcase_max_times is not None and (stream or fields.retry_badcase is False):
        raise InvalidRequest("retry_badcase_max_times has no effect without retries (stream, or retry_badcase = false)",
                             param="retry_badcase_max_times")  # fmt: skip


def _check_lengths(fields: SpeechBody) -> None:
    """A least length beyond the greatest has no effect; equal ones give takes of one length.

    One alone may be beyond the other one's setting.
    """
    if fields.min_len is not None and fields.max_len is not None and fields.min_len > fields.max_len:
        raise InvalidRequest(
            f"max_len is {fields.max_len}, below min_len, which is {fields.min_len}: raise it, or lower min_len",
            param="max_len",
        )


def _normalize(fields: SpeechBody, settings: Settings) -> bool | Language:
    """Whether the input is to be spelled out, and in which language if the caller says so."""
    wanted = settings.normalize if fields.normalize is None else fields.normalize
    if isinstance(wanted, str) and wanted not in LANGUAGES:
        raise InvalidRequest(
            f"normalize is {wanted[:40]!r}; true, false, {', '.join(map(repr, LANGUAGES))} are known", param="normalize"
        )
    if fields.normalize is None and is_installed() and can_spell(fields.input, wanted) is not None:
        return False  # asked for by the setting only: a text in another script is spoken as it stands
    check_spelling(fields.input, wanted)
    return wanted


def _joined(lead: np.ndarray, clip: np.ndarray, rate_hz: int, settings: Settings) -> np.ndarray:
    """Two clips as one to continue from, within the limit of one: a message between actors has to hold it."""
    joined = np.concatenate([lead, clip])
    if len(joined) > settings.max_reference_seconds * rate_hz:
        raise TooLarge(
            f"ref_audio and prompt_audio last {len(joined) / rate_hz:.1f} s together; with ref_text speech continues "
            f"from both, and at most {settings.max_reference_seconds:g} s are accepted: leave ref_text out",
            param="ref_text",
        )
    return joined


def _clips(fields: SpeechBody, settings: Settings) -> tuple[_Clip | None, _Clip | None, tuple[str | None, str], str]:
    """Reference, prompt, the transcripts that go before and with the prompt, and the prompt's field."""
    if fields.ref_text is not None and fields.ref_audio is None:
        raise InvalidRequest("ref_text needs ref_audio, the recording it belongs to", param="ref_text")
    if fields.prompt_text is not None and fields.prompt_audio is None:
        raise InvalidRequest("prompt_text needs prompt_audio, the recording it belongs to", param="prompt_text")
    if fields.prompt_audio is not None and fields.prompt_text is None:
        raise InvalidRequest("prompt_audio needs prompt_text, what the recording says", param="prompt_text")
    for param in ("ref_text", "prompt_text"):
        if (transcript := getattr(fields, param)) is not None:
            _check_text(transcript, param, settings)
    reference = None if fields.ref_audio is None else _clip(fields.ref_audio, "ref_audio", settings)
    if fields.prompt_audio is not None:
        prompt = _clip(fields.prompt_audio, "prompt_audio", settings)
        return reference, prompt, (fields.ref_text, fields.prompt_text or ""), "prompt_audio"
    if fields.ref_text is not None:
        return reference, reference, (None, fields.ref_text), "ref_audio"
    return reference, None, (None, ""), "prompt_audio"


def _clip(value: str, param: str, settings: Settings) -> _Clip:
    return link_of(value, param, settings) or parse_audio_field(value, param)


def _audio_format(fields: SpeechBody) -> AudioFormat:
    wanted = AudioFormat.MP3 if fields.response_format is None else fields.response_format
    try:
        return AudioFormat(wanted)
    except ValueError:
        known = ", ".join(AudioFormat)
        raise InvalidRequest(
            f"response_format {wanted[:40]!r} is not supported; supported are {known}", param="response_format"
        ) from None
