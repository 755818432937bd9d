"""The pages for everybody: by keyboard, on a phone, in the dark, with a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.looking import TEN, Site, contrast, speak, wait_for_sound, wait_for_take
from tests.unit.serve.serving import running

NAMELESS = """() => [
    ...document.querySelectorAll("button, input, select, textarea, a, canvas, [role=img]"),
].filter((each) => {
    const labelled = each.labels?.length || each.getAttribute("aria-label") || each.getAttribute("aria-labelledby");
    return !labelled && !each.textContent.trim();
}).map((each) => each.outerHTML.slice(0, 120))"""
WIDER = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.name"))


def tab_to(page: Any, name: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page) == name:
            return
    raise AssertionError(f"the keyboard never reaches {name}")


def test_by_keyboard_alone(talk: Any) -> None:
    talk.keyboard.press("Tab")
    assert talk.evaluate("document.activeElement.className") == "skip"
    talk.keyboard.press("Enter")
    tab_to(talk, "text")
    talk.keyboard.press("Control+a")
    talk.keyboard.type(TEN)
    talk.keyboard.press("Control+Enter")
    wait_for_sound(talk)
    wait_for_take(talk)
    talk.wait_for_selector("#take:not([data-playing])")
    tab_to(talk, "go")
    tab_to(talk, "voice")
    tab_to(talk, "browse")
    tab_to(talk, "play")
    outline = talk.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "one sees where one is"
    talk.keyboard.press("Space")
    wait_for_sound(talk, 10 * 7680 + 1)
    tab_to(talk, "seek")
    talk.keyboard.press("Home")
    tab_to(talk, "tab-curl")
    talk.keyboard.press("ArrowRight")
    assert focused(talk) == "tab-python"
    assert "from openai import OpenAI" in talk.inner_text("#code-text")


@pytest.mark.parametrize("page_name", ["", "board"])
def test_every_control_has_a_name(visit: Callable[..., Any], site: Site, page_name: str) -> None:
    page = visit(site[0] + page_name, ready="body[data-ready]" if not page_name else ".replica")
    assert page.evaluate(NAMELESS) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))


def test_on_a_phone(visit: Callable[..., Any], site: Site) -> None:
    page = visit(site[0], **PHONE)
    assert not page.evaluate(WIDER)
    box = page.locator("#go").bounding_box()
    assert 0 <= box["y"] <= 740 - box["height"], "to speak needs no scrolling"
    assert box["height"] >= 44
    page.fill("#text", TEN)
    page.tap("#go")
    wait_for_take(page)
    stage = page.locator("#stage").bounding_box()
    assert stage["y"] < 740, "the take comes into view"
    page.tap("summary:has-text('Advanced')")
    assert not page.evaluate(WIDER)
    board = visit(site[0] + "board", ready=".replica", **PHONE)
    assert not board.evaluate(WIDER)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_light_and_dark(visit: Callable[..., Any], site: Site, scheme: str) -> None:
    page = visit(site[0], color_scheme=scheme)
    dark = page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 60")
    assert dark == (scheme == "dark")
    speak(page, "@tokens=none@")
    page.wait_for_selector("#error:not([hidden])")
    for text in (
        "#text",
        "#go",
        "#count",
        "#style-hint",
        "#status",
        "#error-title",
        "#error-text",
        ".voice small",
        "#code",
    ):
        assert contrast(page, text) >= 4.5, text


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """Address of a server that asks for a key."""
    with running({"api_keys": "key-one"}, samples_per_patch=7680) as (address, _):
        yield f"http://{address}/"


def test_a_key_is_asked_for_and_kept_in_the_tab(visit: Callable[..., Any], locked: str) -> None:
    page = visit(locked, ready="#key-form:not([hidden])")
    assert focused(page) == "key"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key[aria-invalid=true]")
    assert "not one of this server" in page.inner_text("#key-hint")
    page.fill("#key", "key-one")
    page.keyboard.press("Enter")
    page.wait_for_selector("body[data-ready]")
    assert page.is_hidden("#key-form")
    speak(page, TEN)
    wait_for_take(page)
    assert "key-one" not in page.content()
    assert "$VOXR_API_KEY" in page.inner_text("#code-text")
    assert page.evaluate("[Object.keys(localStorage).length, document.cookie]") == [0, ""]
    page.goto(f"{locked}board")
    page.wait_for_selector(".replica")
    page.goto(locked)
    page.wait_for_selector("body[data-ready]")
    page.click("#forget")
    page.wait_for_selector("#key-form:not([hidden])")


def test_the_board_asks_for_a_key_too(visit: Callable[..., Any], locked: str) -> None:
    page = visit(f"{locked}board", ready="#key-form:not([hidden])")
    page.fill("#key", "key-one")
    page.keyboard.press("Enter")
    page.wait_for_selector(".replica")
