"""Named voices as a router sees them: the library asked at every use, clips kept only to spare the way.

Runs on a router's event loop.
"""

from __future__ import annotations

from collections import OrderedDict

from voxr_ray.errors import EngineError, InvalidRequest
from voxr_ray.messages import Prompt, Reference, SynthRequest
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.values import VoiceClip, VoiceInfo
from voxr_ray.serve.voice_names import DEFAULT_VOICE, check_name, key_of

_LONGEST_SENT = 100
"""Characters of a name that the library is shown: no voice has as many, and a message has a limit."""

_KEPT = 16
"""Clips a router keeps; the longest have 2 MB."""


class Voices:
    """The voices behind one library.

    Args:
        library: The library deployment.
    """

    def __init__(self, library: Replicas) -> None:
        self._library = library
        self._kept: OrderedDict[tuple[str, int], VoiceClip] = OrderedDict()

    async def list(self) -> list[VoiceInfo]:
        """All voices by name, without the default one."""
        found: list[VoiceInfo] = await self._library.call("list")
        return found

    async def find(self, name: str, rate_hz: int) -> VoiceClip:
        """The voice of that name as it is at this moment.

        Raises:
            UnknownVoice: There is none.
        """
        name = name[:_LONGEST_SENT]
        key = (key_of(name), rate_hz)
        held = self._kept.get(key)
        found: VoiceClip | None = await self._library.call("find", name, rate_hz, held.version if held else None)
        clip = found if found is not None else held
        if clip is None:
            raise EngineError("the library said nothing of a voice it was asked for")
        self._kept[key] = clip
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return clip

    async def add(self, name: str, audio: bytes, text: str | None, consent: str | None) -> VoiceInfo:
        """Store a voice; every router speaks with it once this returns."""
        check_name(name)
        # By reference: a recording may be larger than a message.
        info: VoiceInfo = await self._library.call("add", name, audio, text, consent, by_reference=True)
        return info

    async def delete(self, name: str) -> VoiceInfo:
        """Remove a voice; no router speaks with it once this returns."""
        if key_of(name) == DEFAULT_VOICE:
            raise InvalidRequest(f"{name!r} is the model's own voice and cannot be deleted", param="name")
        info: VoiceInfo = await self._library.call("delete", name[:_LONGEST_SENT])
        return info


def spoken_with(request: SynthRequest, voice: VoiceClip, *, styled: bool) -> SynthRequest:
    """A request spoken with a stored voice.

    The recording is the reference. With a transcript it is also what the speech continues from, as ``ref_audio`` with
    ``ref_text`` would be; not if the request brings a prompt of its own, nor if it is styled by instructions, which
    cannot steer a continuation.
    """
    recording = voice.recording
    changes: dict[str, Reference | Prompt] = {"reference": Reference(recording.digest, recording.clip)}
    if voice.text is not None and request.prompt is None and not styled:
        changes["prompt"] = Prompt(recording.digest, recording.clip, text=voice.text)
    return request.model_copy(update=changes)
