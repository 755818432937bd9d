"""The one limit a request meets in the engine: a slot's positions. Pure; any thread."""

from __future__ import annotations

from voxr_ray.engine.jobs import budget_of
from voxr_ray.engine.model import Plan
from voxr_ray.errors import TooLarge
from voxr_ray.messages import SynthRequest


def check_fits(request: SynthRequest, plan: Plan, capacity: int) -> None:
    """Refuse a request whose prefix and budget of patches do not fit a slot.

    The sum must stay below the capacity: after the last patch the lane points one position further.

    Raises:
        TooLarge: It does not fit. Nothing is ever cut short to make it fit.
    """
    budget = budget_of(request, plan)
    if plan.seq_len + budget < capacity:
        return
    parts = f"the text ({plan.text_tokens} tokens)"
    if request.reference is not None or request.prompt is not None:
        parts += " and its recordings"
    raise TooLarge(
        f"with {parts} the request needs {plan.seq_len} positions and up to {budget} patches, together "
        f"{plan.seq_len + budget}; this server takes less than {capacity}. Shorten the text or the recordings, or "
        f"lower max_len (now {request.max_len}) or retry_badcase_ratio_threshold "
        f"(now {request.retry_badcase_ratio_threshold:g}); the operator can raise continuous_capacity",
        param="text",
    )
