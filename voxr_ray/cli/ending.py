"""Exit codes, and the one line that goes with them."""

from __future__ import annotations

import click

from voxr_ray.errors import Overloaded, RequestError, VoxrError

FAILED = 1
"""The model, the server, the network or a file."""

WRONG = 2
"""The command line or the request has to be changed; click's own code for it too."""

NO_ROOM = 75
"""Try again later: EX_TEMPFAIL of sysexits.h."""

INTERRUPTED = 130
BROKEN_PIPE = 141


class Failure(click.ClickException):
    """Ends a command with a line and a code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(" ".join(message.split()))
        self._code = code

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        """Code of the process."""
        return self._code


def failure(error: VoxrError) -> Failure:
    """How a command ends for an error of the project's tree."""
    message = error.message
    if isinstance(error, Overloaded):
        later = "" if error.retry_after_s is None else f"; try again in {error.retry_after_s:.0f} s"
        return Failure(message + later, NO_ROOM)
    return Failure(message, WRONG if isinstance(error, RequestError) else FAILED)
