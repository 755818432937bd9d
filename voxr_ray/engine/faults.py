"""Blame: turns whatever a model raises into an error that says what failed, and for whom. Any thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from voxr_ray.errors import EngineStopped, ModelError, VoxrError

_logger = logging.getLogger(__name__)


@contextmanager
def blamed(work: str, request_id: str = "") -> Iterator[None]:
    """Run a job's own work; errors of the project's tree pass, anything else becomes :class:`ModelError`.

    The traceback goes to the log and not along with the error: its frames hold tensors, and the error lives as long
    as its caller likes.

    Args:
        work: What is done, for the message: "the prefill".
        request_id: Of the request it is done for, for the log; the owner thread serves many.
    """
    try:
        yield
    except VoxrError:
        raise
    except Exception as error:
        _logger.exception("%s failed", work, extra={"request_id": request_id} if request_id else None)
        raise ModelError(f"{work} failed: {described(error)}") from error.with_traceback(None)


@contextmanager
def fatal(work: str) -> Iterator[None]:
    """Run work that all rows depend on: whatever it raises ends the engine, and names the work.

    Args:
        work: What is done, for the message: "a step".
    """
    try:
        yield
    except EngineStopped:
        raise
    except Exception as error:
        raise EngineStopped(f"{work} failed: {described(error)}") from error


def described(error: BaseException) -> str:
    """Type and message in one line."""
    message = str(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
