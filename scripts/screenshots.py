"""Take the pictures of the documentation: ``python scripts/screenshots.py http://localhost:8000/ docs/images``.

Needs ``pip install '.[browser]'`` and Debian's chromium, and a running server. The board is taken after it has watched
for a while, so put load on the server first.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

WIDE = {"viewport": {"width": 1240, "height": 980}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
WATCHED_MS = 13_000  # a little more than the board's strip shows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", help="address of the server, with a slash at the end")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--only", choices=["page", "board"], help="take only these")
    parser.add_argument("--recording", type=Path, help="recording of a voice to show in the dark picture")
    chosen = parser.parse_args()
    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        if chosen.only != "board":
            take_page(browser, chosen.url, chosen.folder, chosen.recording)
        if chosen.only != "page":
            page = opened(
                browser, f"{chosen.url}board", ".replica", WIDE | {"viewport": {"width": 1240, "height": 860}}
            )
            page.wait_for_timeout(WATCHED_MS)
            page.screenshot(path=chosen.folder / "board.png")
        browser.close()


def take_page(browser: Browser, url: str, folder: Path, recording: Path | None) -> None:
    ready = "body[data-ready]"
    for name, options in {"light": WIDE, "dark": WIDE | {"color_scheme": "dark"}, "phone": PHONE}.items():
        page = opened(browser, url, ready, options)
        if name == "dark" and recording is not None:
            page.set_input_files("#file", recording)
            page.wait_for_selector("#clip:not([hidden])")
        page.click("#go")
        page.wait_for_selector("#take[data-state=done]", timeout=120_000)
        page.wait_for_timeout(700)  # so that some of it has been played
        page.screenshot(path=folder / f"page-{name}.png")
        page.context.close()


def opened(browser: Browser, url: str, ready: str, options: dict[str, object]) -> Page:
    page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
    page.goto(url)
    page.wait_for_selector(ready)
    return page


if __name__ == "__main__":
    main()
