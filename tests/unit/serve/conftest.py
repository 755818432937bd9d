from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.unit.serve.local import LocalServer


@pytest_asyncio.fixture
async def local() -> AsyncIterator[LocalServer]:
    """A server with the default settings."""
    server = LocalServer()
    yield server
    await server.close()
