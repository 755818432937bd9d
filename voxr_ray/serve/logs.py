"""Logs of a deployment's process. Called by constructors; no thread of its own.

Serve configures its own logger alone and writes a traceback for every exception a deployment's method raises: it
cannot know that a refused request is an answer. Left alone, a client that sends nonsense fills the log and real
failures drown in it, while this project's own lines are shown nowhere.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping

from voxr_ray.errors import Cancelled, Overloaded, RequestError
from voxr_ray.serve.responses import StreamBroken

_ANSWERS = (RequestError, Overloaded, Cancelled)
_SERVE_LOGGER = "ray.serve"
_OWN_LOGGER = "voxr_ray"
_MOST_ID = 128


class _AnswersAreNoFailures(logging.Filter):
    """Turns Serve's record of an answer into one line at INFO, without a traceback.

    Likewise of a stream that broke: whoever broke it has logged why, with the request's id.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, _ANSWERS):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg, record.args = "Request refused: %s", (error,)
            record.exc_info = record.exc_text = None
        elif isinstance(error, StreamBroken):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg, record.args = "Stream broken: %s", (error,)
            record.exc_info = record.exc_text = None
        return True


def request_id_of(headers: Mapping[str, str]) -> str:
    """The id that follows a request through the logs: the caller's, or a new one where that is missing or blank."""
    return headers.get("x-request-id", "").strip()[:_MOST_ID] or uuid.uuid4().hex


def set_up_logs() -> None:
    """Send this project's lines where Serve's go, and keep refusals short. Does nothing the second time."""
    serve, own = logging.getLogger(_SERVE_LOGGER), logging.getLogger(_OWN_LOGGER)
    if any(isinstance(each, _AnswersAreNoFailures) for each in serve.filters):
        return
    serve.addFilter(_AnswersAreNoFailures())
    if serve.handlers:
        own.handlers = list(serve.handlers)
        own.setLevel(serve.level)
        own.propagate = False
