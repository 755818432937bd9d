"""Values that only the deployments exchange. They pickle; no thread owns them."""

from __future__ import annotations

from dataclasses import dataclass

from voxr_ray.engine.model import ModelSpec


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
