from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.serve.local import LocalServer
from tests.unit.serve.serving import running


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
