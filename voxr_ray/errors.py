"""Every error the project raises on purpose, in one tree.

::

    VoxrError
    ├── RequestError             the caller can mend it (4xx)
    │   ├── InvalidRequest       a field is missing, malformed or out of range
    │   ├── TooLarge             the request does not fit a limit of this server
    │   ├── UnknownVoice         no voice of that name
    │   ├── VoiceExists          the name of a new voice is taken
    │   └── BadAudio             a recording cannot be decoded or used
    ├── Overloaded               slots and queue are full; try again later
    ├── Cancelled                the caller left
    ├── EngineError              the server failed (5xx)
    │   ├── ModelError           one row failed; others are untouched
    │   ├── EngineStopped        the loop has ended; every later job is refused       (elsewhere)
    │   ├── ReplicaLost          a replica died, was removed or fell silent           (elsewhere)
    │   ├── ResumeMismatch       a replica made other audio than the one before it    (elsewhere)
    │   └── Unavailable          there is no replica to work on it
    └── ConfigurationError       the operator can mend it; raised before anything is served
        └── CheckpointError      model files are missing, unsafe or do not fit their configuration

Those marked *elsewhere* are the replica's fault and not the request's: another replica may do the same work
(:attr:`VoxrError.elsewhere`, the one place where that is decided; :mod:`voxr_ray.serve.failover` acts on it).

A message names the value, the limit and the remedy. The table from class to HTTP status lives with the HTTP
surface (:mod:`voxr_ray.serve.http_errors`): nothing below it knows of status codes.

Errors cross actor boundaries, so each one pickles with all its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class VoxrError(Exception):
    """Root of the tree.

    Args:
        message: One or two sentences for the person who reads it: the value, the limit, the remedy.
        param: The request field the error is about, if it is about one.
        retry_after_s: Seconds after which a new attempt makes sense, for errors that pass by themselves.
    """

    elsewhere: ClassVar[bool] = False
    """Whether the same work may succeed on another replica, at once: what failed is the replica."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Callable[..., VoxrError], tuple[Any, ...]]:
        return _rebuild, (type(self), self.message, self.param, self.retry_after_s)


def _rebuild(cls: type[VoxrError], message: str, param: str | None, retry_after_s: float | None) -> VoxrError:
    return cls(message, param=param, retry_after_s=retry_after_s)


class RequestError(VoxrError):
    """The request is at fault; sending it again unchanged fails again."""


class InvalidRequest(RequestError):
    """A field is missing, malformed or out of range."""


class TooLarge(RequestError):
    """The request does not fit a limit of this server. The message has both numbers."""


class UnknownVoice(RequestError):
    """No voice of that name is known."""


class VoiceExists(RequestError):
    """A voice of that name is stored already; delete it first."""


class BadAudio(RequestError):
    """A recording cannot be decoded, or what it holds cannot be used."""


class Overloaded(VoxrError):
    """Every slot is taken and the queue is full. ``retry_after_s`` says when to come back."""


class Cancelled(VoxrError):
    """The caller left before the result was complete."""


class EngineError(VoxrError):
    """The server failed; the request may be fine."""


class ModelError(EngineError):
    """The work of one row failed. The row is gone, its neighbours are untouched."""


class EngineStopped(EngineError):
    """The engine's loop has ended. The message carries the cause; a new replica is needed."""

    elsewhere = True


class ReplicaLost(EngineError):
    """The replica that worked on a request died, was removed, or says nothing any more."""

    elsewhere = True


class ResumeMismatch(EngineError):
    """A replica that was to go on with an answer makes other audio than what the caller has already.

    Replicas of one kind of processor and build never do; one of another kind may.
    """

    elsewhere = True


class Unavailable(EngineError):
    """No replica takes the request: none runs, or none answers."""


class ConfigurationError(VoxrError):
    """A setting, or the combination of several, cannot work. Raised at start, never for a request."""


class CheckpointError(ConfigurationError):
    """Model files are missing, unsafe to load, or do not fit their configuration."""
