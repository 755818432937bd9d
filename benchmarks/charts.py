"""Draw columns of a benchmark's table, from the file that its ``--json`` wrote, as a picture.

    python -m benchmarks.engine --against voxcpm --json engine.json
    python -m benchmarks.charts engine.json -x rows -y "patches/s" "official patches/s" -o engine.png

Needs matplotlib: ``pip install '.[bench]'``.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CAPTION_CHARS = 100


def chart(content: dict[str, Any], x: str, ys: Sequence[str], path: Path) -> None:
    """Draw the columns ``ys`` over the column ``x``; the caption says what was measured, where and when.

    Args:
        content: A benchmark's file.
        x: Column of numbers; their distances do not matter, only their order.
        ys: Columns of numbers, in one unit. A line that lacks one has a gap there.
        path: Where the picture goes; its suffix is the format.

    Raises:
        KeyError: No line of the table has such a column.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    lines = content["lines"]
    for name in (x, *ys):
        if not any(name in line for line in lines):
            raise KeyError(name)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 3.6), dpi=150, layout="constrained")
        axes = figure.subplots()
        for name in ys:
            axes.plot([line.get(name, float("nan")) for line in lines], marker="o", label=name)
        axes.set_xticks(range(len(lines)), [str(line[x]) for line in lines])
        axes.set_xlabel(x)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(frameon=False)
        here = content["machine"]
        caption = f"{content['title']}. {here['processor']}, {here['cpus']} CPUs, load {here['load']}, {here['date']}"
        axes.set_title("\n".join(textwrap.wrap(caption, CAPTION_CHARS)), fontsize=7, loc="left")
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw columns of a benchmark's table.")
    parser.add_argument("file", type=Path, help="what --json wrote")
    parser.add_argument("-x", default="rows", help="column of the horizontal axis")
    parser.add_argument("-y", nargs="+", required=True, help="columns of the vertical axis, in one unit")
    parser.add_argument("-o", "--output", type=Path, required=True, help="picture, such as engine.png")
    arguments = parser.parse_args()
    content = json.loads(arguments.file.read_text("utf-8"))
    try:
        chart(content, arguments.x, arguments.y, arguments.output)
    except KeyError as error:
        known = sorted({name for line in content["lines"] for name in line})
        parser.error(f"no column {error.args[0]!r}; there are: {', '.join(known)}")


if __name__ == "__main__":
    main()
