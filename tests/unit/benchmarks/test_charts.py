"""A chart shows the columns that were asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import charts
from benchmarks.tables import report

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[bench]'")

LINES = [{"rows": 1, "patches/s": 3.0, "official patches/s": 2.0}, {"rows": 16, "patches/s": 9.0}]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "engine.json"
    report("a title", LINES, path)
    return path


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.asarray(imread(path))


def test_another_column_is_another_picture(file: Path, tmp_path: Path) -> None:
    content = json.loads(file.read_text("utf-8"))
    for name, ys in (("one", ["patches/s"]), ("same", ["patches/s"]), ("two", ["patches/s", "official patches/s"])):
        charts.chart(content, "rows", ys, tmp_path / f"{name}.png")
    one, same, two = (pixels(tmp_path / f"{name}.png") for name in ("one", "same", "two"))
    assert one.shape[0] > 300
    assert one.shape[1] > 600
    assert np.array_equal(one, same)
    assert not np.array_equal(one, two)


def test_the_command_names_the_columns_there_are(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "engine.png"
    monkeypatch.setattr(sys, "argv", ["charts", str(file), "-y", "steps/s", "-o", str(picture)])
    with pytest.raises(SystemExit):
        charts.main()
    assert "no column 'steps/s'; there are: official patches/s, patches/s, rows" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["charts", str(file), "-y", "patches/s", "-o", str(picture)])
    charts.main()
    assert pixels(picture).size
