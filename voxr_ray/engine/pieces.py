"""Doing work piece by piece. Pure; the thread that owns the work."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from voxr_ray.engine.model import Work

T = TypeVar("T")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Finished(Generic[T]):
    """The last piece is done."""

    result: T


def do_piece(work: Work[T]) -> Finished[T] | None:
    """Do the next piece of ``work``; its result if that was the last."""
    try:
        next(work)
    except StopIteration as end:
        return Finished(end.value)
    return None


def abandon(work: Work[Any]) -> None:
    """Stop in the middle. A model that cannot even do that must not take others' rows along."""
    try:
        work.close()
    except Exception:
        _logger.exception("a model failed to abandon its work")
