"""Values that only the deployments exchange. They pickle; no thread owns them."""

from __future__ import annotations

from dataclasses import dataclass

from voxr_ray.engine.model import ModelSpec
from voxr_ray.messages import Recording


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What a router needs to know of the model its replicas run.

    Attributes:
        spec: Sizes and rates of the model.
        notice: What callers should know of this checkpoint (for example that it does not speak), from its own
            metadata; ``None`` if there is nothing.
    """

    spec: ModelSpec
    notice: str | None


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a caller has of an answer whose replica was lost: where another one goes on.

    Attributes:
        samples: Samples it has, from the first.
        tail_samples: How many of them, the last, ``tail_checksum`` is about.
        tail_checksum: CRC-32 of their float32 bytes. A take that went another way shows at its end: the generation is
            chaotic, so there is no need to keep a sum of everything.
    """

    samples: int = 0
    tail_samples: int = 0
    tail_checksum: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """What a replica says while it has no audio to send: it is there, and so is the request."""


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """What is told of a voice.

    Attributes:
        name: Its name, also its id.
        created_at_s: When it was stored, in Unix seconds.
        has_text: Whether its transcript is known.
    """

    name: str
    created_at_s: int
    has_text: bool


@dataclass(frozen=True, slots=True, eq=False)
class VoiceClip:
    """A voice ready to be spoken with.

    Attributes:
        name: Its name as stored.
        version: Changes whenever recording or transcript do.
        recording: The clip at the model's input rate, and its digest.
        text: What the recording says, if that is known.
    """

    name: str
    version: str
    recording: Recording
    text: str | None
