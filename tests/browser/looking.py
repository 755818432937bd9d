"""What tests look for on a page."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.unit.serve.local import LocalServer

Site = tuple[str, LocalServer]
"""Address of a server, and the server."""

TEN = "Ten patches, please. @patches=10@"
LENIENT = {"retry_badcase_ratio_threshold": 100.0}
"""Lets a take that never stops go on for long."""

STATE = "#take[data-state={}]"


def until(page: Any, condition: str, argument: Any = None) -> None:
    """Wait until a script gives something true.

    Not Playwright's ``wait_for_function``, which evaluates text inside the page: the policy of these pages forbids it.
    """
    end = time.monotonic() + 60
    while not page.evaluate(condition, argument):
        assert time.monotonic() < end, f"never came true: {condition}"
        page.wait_for_timeout(20)


def speak(page: Any, text: str) -> None:
    """Type a text and ask for speech."""
    page.fill("#text", text)
    page.click("#go")


def wait_for_take(page: Any) -> None:
    """Wait until all audio of a take has arrived."""
    page.wait_for_selector(STATE.format("done"))


def played(page: Any) -> int:
    """Samples that left for the speakers, of this take."""
    return int(page.get_attribute("#take", "data-played") or 0)


def wait_for_sound(page: Any, samples: int = 1) -> None:
    """Wait until so many samples left for the speakers."""
    until(page, f"Number(document.getElementById('take').dataset.played) >= {samples}")


def colours(page: Any, canvas: str) -> int:
    """Different colours on a canvas; 1 of a blank one."""
    return int(
        page.evaluate(
            """(selector) => {
                const canvas = document.querySelector(selector);
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                return new Set(new Uint32Array(data.buffer)).size;
            }""",
            canvas,
        )
    )


def wait_for_picture(page: Any, canvas: str, least: int) -> None:
    """Wait until a canvas shows at least so many colours."""
    until(
        page,
        """([selector, least]) => {
            const canvas = document.querySelector(selector);
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size >= least;
        }""",
        [canvas, least],
    )


def contrast(page: Any, selector: str) -> float:
    """Contrast of an element's text with the colour behind it, as WCAG defines it: 1 to 21."""
    return float(
        page.evaluate(
            """(selector) => {
                const light = (colour) => {
                    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
                        const value = Number(part) / 255;
                        return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
                    });
                    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
                };
                const element = document.querySelector(selector);
                const none = /(, 0\\)|transparent)$/;
                let behind = element;
                while (none.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
                const levels = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor].map(light);
                return (Math.max(...levels) + 0.05) / (Math.min(...levels) + 0.05);
            }""",
            selector,
        )
    )


def wait_until_idle(local: LocalServer) -> None:
    """Wait until the engine holds no render."""
    until = time.monotonic() + 60
    while local.replica._engine.load.renders:
        assert time.monotonic() < until, "the engine never became idle"
        time.sleep(0.01)


@contextlib.contextmanager
def stopping_after(local: LocalServer, steps: int) -> Iterator[None]:
    """The engine stands still after so many steps, and goes on at the end: what is under way stays so."""
    model: Any = local.replica._engine.model
    go_on, made = threading.Event(), itertools.count()
    model.hooks["step"] = lambda call: go_on.wait(240) if next(made) >= steps else None
    try:
        yield
    finally:
        del model.hooks["step"]
        go_on.set()
