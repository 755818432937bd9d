"""Debian's chromium, driven by Playwright, on pages of a server with the fake model.

What is skipped says why: without Playwright (``pip install '.[browser]'``) or chromium (``apt-get install chromium``).
Sound goes nowhere and the microphone is a test tone, so the tests need no device. Every page is checked at its end:
no script failed, and nothing was asked of anybody but the server.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.serve.local import LocalServer
from tests.unit.serve.serving import running

FLAGS = [
    "--no-sandbox",  # tests may run as root, in containers
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("browser")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A running browser.

    It goes with its module: Playwright keeps an event loop running in this thread, beside which no
    other test could run one.
    """
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install '.[browser]'"
    )
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site() -> Iterator[tuple[str, LocalServer]]:
    """Address of a server with two slots and one place in the queue, and the server itself."""
    with running({"max_batch": 2, "max_queue": 1}, samples_per_patch=7680, delays={"step": 0.01}) as (address, local):
        yield f"http://{address}/", local


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page in a context of its own: ``visit(address, viewport=..., color_scheme=...)``."""
    contexts, wrong = [], []

    def opened(address: str, *, ready: str = "body[data-ready]", script: str = "", **options: Any) -> Any:
        context = chromium.new_context(**({"viewport": {"width": 1240, "height": 1000}} | options))
        contexts.append(context)
        context.set_default_timeout(90_000)
        if script:
            context.add_init_script(script)
        page = context.new_page()
        origin = address.split("/", 3)[2]
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: wrong.append(asked.url) if origin not in asked.url[:60] else None)
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        page.goto(address)
        if ready:
            page.wait_for_selector(ready)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [each for each in wrong if not each.startswith(("blob:", "data:"))] == []


@pytest.fixture
def talk(visit: Callable[..., Any], site: tuple[str, LocalServer]) -> Any:
    """The page to talk to, ready."""
    return visit(site[0])
