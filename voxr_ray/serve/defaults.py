"""What a render gets where its request does not say, for every way in."""

from __future__ import annotations

from voxr_ray.config import Settings
from voxr_ray.messages import SynthRequest

RENDER_FIELDS = (
    "cfg_value",
    "inference_timesteps",
    "min_len",
    "max_len",
    "retry_badcase",
    "retry_badcase_max_times",
    "retry_badcase_ratio_threshold",
)
"""Fields of a request that settings of the same name are the defaults of."""


def completed(request: SynthRequest, settings: Settings) -> SynthRequest:
    """A request that came by handle, with the server's defaults where its maker said nothing.

    What was said is known also of a request that was pickled: one that names the class's own default means it.
    """
    unsaid = {*RENDER_FIELDS, "normalize"} - request.model_fields_set
    return request.model_copy(update={name: getattr(settings, name) for name in unsaid})
