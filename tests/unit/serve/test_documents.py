"""Documents say what the code does: every example runs, every error is listed."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from tests.playback import decode, speech_like
from tests.unit.serve.serving import serving
from voxr_ray.config import Settings
from voxr_ray.serve.http_errors import error_table
from voxr_ray.serve.speech_body import SpeechBody

DOCS = Path(__file__).resolve().parents[3] / "docs"
EXAMPLE = re.compile(
    r"(?:<!-- settings: (?P<settings>.*?) -->\n)?```(?P<language>bash|python)\n(?P<code>.*?)```", re.DOTALL
)
EXAMPLES = [match.groupdict() for match in EXAMPLE.finditer((DOCS / "http.md").read_text())]


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """A server for each of the settings the examples need."""
    with contextlib.ExitStack() as stack:
        wanted = {example["settings"] or "{}" for example in EXAMPLES}
        yield {text: stack.enter_context(serving(json.loads(text))) for text in wanted}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example['language']}: {example['code'][:60]}")
def test_every_example_of_http_runs(
    example: dict[str, str], addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("voice.wav", speech_like(1.0, 16_000), 16_000)
    code = example["code"].replace("localhost:8000", addresses[example["settings"] or "{}"])
    if example["language"] == "python":
        exec(compile(code, "http.md", "exec"), {})  # noqa: S102
    else:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, check=True)  # noqa: S603, S607
        if b"items" in code.encode():
            assert [each["status"] for each in json.loads(done.stdout)["results"]] == ["success", "success", "error"]
    for made in tmp_path.iterdir():
        if made.suffix != ".wav":
            assert len(decode(made.read_bytes(), made.suffix.removeprefix("."), 48_000)[0]) > 1_000


def table(document: str, columns: int) -> list[list[str]]:
    """Rows of all tables of a document with so many columns, without heads."""
    rows = [line.strip("| ").split(" | ") for line in (DOCS / document).read_text().splitlines() if line[:1] == "|"]
    return [row for row in rows if len(row) == columns and row[0].startswith("`")]


def test_every_error_is_listed() -> None:
    listed = {(row[0].strip("`"), row[1], row[2].strip("`")) for row in table("errors.md", 5)}
    known = {(code, str(status), kind) for status, kind, code in error_table()}
    assert listed == known | {("http_error", "any other", "by status")}


def test_every_field_is_listed() -> None:
    named = [name for row in table("http.md", 3) for name in re.findall(r"`(\w+)`", row[0])]
    assert set(SpeechBody.model_fields) <= set(named)


def test_every_setting_that_is_named_exists() -> None:
    text = (DOCS / "http.md").read_text() + (DOCS / "errors.md").read_text()
    named = set(re.findall(r"`((?:max|allowed|api|cors|batch|request|model)_\w+)`", text))
    body = {*SpeechBody.model_fields, "model_not_found"}
    assert named - body <= set(Settings.model_fields)
