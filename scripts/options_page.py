"""Write ``docs/options.md`` from the settings model, so that they agree: ``python scripts/options_page.py``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from voxr_ray.config import Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"

HEAD = """# Options

`serve run voxr_ray:app name=value …`, the `args:` of a deployment file, or environment variables `VOXR_<NAME>` of the
process that builds the application, in this order of strength. Lists are JSON or separated by commas. What cannot work
is refused in one line before anything starts.

This page is made from `voxr_ray/config.py` by `scripts/options_page.py`.
"""

_SECTION = re.compile(r"^    # ---- (.+) ----$")
_FIELD = re.compile(r"^    (\w+): ")
_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


def sections() -> dict[str, list[str]]:
    """Names of the settings, by the heading they stand under in the source."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in inspect.getsource(Settings).splitlines():
        if match := _SECTION.match(line):
            names = found[match[1]] = []
        elif (match := _FIELD.match(line)) and match[1] in Settings.model_fields:
            names.append(match[1])
    return found


def default(field: FieldInfo) -> str:
    """The default, as it would be written."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ((), {}):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def limits(field: FieldInfo) -> str:
    """Values that are accepted, as far as one number bounds them."""
    if hasattr(field.annotation, "__args__") and all(isinstance(each, str) for each in field.annotation.__args__):
        return ", ".join(f"`{each}`" for each in field.annotation.__args__)
    bounds: list[Any] = [each for each in field.metadata if type(each) in _SIGNS]
    for inner in getattr(field.annotation, "__args__", ()):
        bounds += [each for each in _flat(inner) if type(each) in _SIGNS]
    return ", ".join(f"{_SIGNS[type(each)]} {_bound(each):,}" for each in bounds)


def _flat(annotation: Any) -> list[Any]:
    found: list[Any] = []
    for each in getattr(annotation, "__metadata__", ()):
        found += each.metadata if isinstance(each, FieldInfo) else [each]
    return found


def _bound(limit: Any) -> Any:
    return next(getattr(limit, name) for name in ("ge", "gt", "le", "lt") if hasattr(limit, name))


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, names in sections().items():
        rows = []
        for name in names:
            field = Settings.model_fields[name]
            text = " ".join((field.description or "").replace("``", "`").split())
            rows.append(f"| `{name}` | {default(field)} | {limits(field)} | {text} |")
        heading = title[0].upper() + title[1:]
        parts.append(
            "\n".join([f"\n## {heading}\n", "| option | default | accepted | meaning |", "|---|---|---|---|", *rows])
        )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
