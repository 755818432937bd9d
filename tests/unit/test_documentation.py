"""Pages that are made from the code, and pages that point at each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.options_page import PAGE, page, sections
from voxr_ray.config import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_the_options_page_is_of_today() -> None:
    assert PAGE.read_text() == page(), "python scripts/options_page.py"


def test_every_option_is_on_it_and_explained() -> None:
    assert [name for names in sections().values() for name in names] == list(Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "training" / "README.md", *PAGES], ids=lambda path: path.stem
)
def test_links_lead_somewhere(path: Path) -> None:
    for target in _LINK.findall(path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_page_can_be_found() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [path.name for path in PAGES if path.name not in nav] == []
