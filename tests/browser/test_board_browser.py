"""The board, as an operator sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from tests.browser.looking import LENIENT, Site, colours, until, wait_for_picture, wait_until_idle

SAME_COLOUR = """(name) => {
    const background = (element) => getComputedStyle(element).backgroundColor;
    const item = [...document.querySelectorAll("#legend > *")].find(({ textContent }) => textContent === name);
    return background(document.querySelector(".slot")) === background(item.querySelector(".swatch"));
}"""
"""Whether the first slot has the colour that the legend gives a sampler. The board may know others, of the past."""


def test_continuous_batching_is_seen(visit: Callable[..., Any], site: Site) -> None:
    wait_until_idle(site[1])
    page = visit(f"{site[0]}board", ready=".replica")
    assert page.inner_text(".pill") == "idle"
    assert page.get_attribute(".slots", "aria-label") == "0 of 2 slots taken"
    body = {"input": "A long one @patches=never@", "stream": True, "response_format": "pcm", "cfg_value": 3.0} | LENIENT
    url = f"{site[0]}v1/audio/speech"
    with (
        httpx.stream("POST", url, json=body, timeout=60) as one,
        httpx.stream("POST", url, json=body, timeout=60) as two,
    ):
        audio = [one.iter_bytes(), two.iter_bytes()]  # held: to let go of them is to leave
        for stream in audio:
            next(stream)
        page.wait_for_selector(".slots[aria-label='2 of 2 slots taken']")
        assert page.inner_text(".pill") == "guidance 3 · 10 steps"
        assert "guidance 3 · 10 steps" in page.inner_text("#legend")
        until(page, SAME_COLOUR, "guidance 3 · 10 steps")
        wait_for_picture(page, ".strip", 5)
        until(page, "parseFloat(document.getElementById('sum-speech').textContent) > 0")
        assert float(page.inner_text("#sum-step").split()[0]) >= 10
        assert page.inner_text("#sum-rows") == "2 of 2"
    page.wait_for_selector(".slots[aria-label='0 of 2 slots taken']")
    page.click("#pause")
    assert page.get_attribute("#pause", "aria-pressed") == "true"


def test_a_board_that_cannot_be_read_says_so_and_recovers(visit: Callable[..., Any], site: Site) -> None:
    page = visit(f"{site[0]}board", ready=".replica")
    page.route("**/v1/board*", lambda route: route.abort())
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error-title") == "The server cannot be reached."
    page.unroute("**/v1/board*")
    page.wait_for_selector("#error", state="hidden")
    assert colours(page, ".strip") > 1
