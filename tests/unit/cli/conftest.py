from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.unit.serve.local import LocalServer
from tests.unit.serve.serving import running

_SET_UP = ("", "httpx", "voxr_ray")


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """The command sets up the logs of its process, which here is the tests'."""
    kept = [
        (logger, logger.level, logger.propagate, list(logger.handlers)) for logger in map(logging.getLogger, _SET_UP)
    ]
    yield
    for logger, level, propagate, handlers in kept:
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, LocalServer]]:
    """Address of a server on the fake model, and the server."""
    with running({}) as (address, local):
        yield f"http://{address}", local


@pytest.fixture
def url(served: tuple[str, LocalServer], monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of a server; no key is set."""
    monkeypatch.delenv("VOXR_API_KEY", raising=False)
    return served[0]
