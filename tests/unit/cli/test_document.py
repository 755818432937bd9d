"""docs/cli.md says what the command does: every example runs, and the README's; every option and code is listed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import soundfile

from tests.unit.cli import command
from tests.unit.serve.voice_files import recording
from voxr_ray.cli import ending
from voxr_ray.cli.main import cli
from voxr_ray.cli.outputs import SUFFIXES

DOCUMENT = (command.ROOT / "docs" / "cli.md").read_text("utf-8")
README = (command.ROOT / "README.md").read_text("utf-8")
BLOCKS = [
    block
    for block in re.findall(r"^```bash\n(.*?)^```", DOCUMENT + README, re.MULTILINE | re.DOTALL)
    if "voxr-ray" in block
]


@pytest.fixture
def commands(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with voxr-ray as pip would install it."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "voxr-ray"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{command.ROOT}" exec "{sys.executable}" -m voxr_ray.cli "$@"\n')
    script.chmod(0o755)
    return str(folder)


def long(block: str) -> bool:
    """Whether it speaks without a server: each command then loads the model for itself."""
    return any("say " in line and "--url" not in line for line in block.splitlines())


@pytest.mark.parametrize(
    "block",
    [pytest.param(each, marks=[pytest.mark.slow] if long(each) else []) for each in BLOCKS],
    ids=lambda block: block[:40],
)
def test_every_example_runs(block: str, url: str, commands: str, tmp_path: Path) -> None:
    (tmp_path / "alice.wav").write_bytes(recording())
    (tmp_path / "book.txt").write_text("A sentence of a book that goes on and on. " * 60)
    before = set(tmp_path.iterdir())
    done = subprocess.run(  # noqa: S603
        ["/bin/bash", "-euo", "pipefail", "-c", block.replace("http://localhost:8000", url)],
        cwd=tmp_path,
        env={"PATH": f"{commands}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = set(tmp_path.iterdir()) - before
    assert len([path for path in made if path.suffix in SUFFIXES]) == len(re.findall(r"-o \w|>\w", block))
    for path in made:
        if path.suffix in (".wav", ".flac", ".mp3"):
            assert soundfile.info(path).frames > 0


def test_every_option_is_described() -> None:
    for name, each in cli.commands.items():
        section = DOCUMENT if name == "say" else DOCUMENT[DOCUMENT.index(f"voxr-ray {name}") :]
        inner = each.commands.values() if isinstance(each, click.Group) else [each]
        options = {option for one in inner for parameter in one.params for option in parameter.opts}
        for option in options - {"--users", "--requests", "--consent", "--api-key"}:
            assert option in section or not option.startswith("-"), f"{name} {option}"


def test_every_exit_code_is_listed() -> None:
    rows = [line.split("|")[1].strip() for line in DOCUMENT.splitlines() if re.match(r"\| \d+ \|", line)]
    known = {value for name, value in vars(ending).items() if name.isupper() and isinstance(value, int)}
    assert {int(row) for row in rows} == known | {0}
    text = command.ok("--help").stdout
    assert all(re.search(rf"^ +{code} ", text, re.MULTILINE) for code in rows)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", DOCUMENT):
        assert (command.ROOT / "docs" / link).exists(), link
    named = re.findall(r"examples/(\w+\.\w+)", DOCUMENT)
    assert sorted(named) == sorted(path.name for path in (command.ROOT / "examples").iterdir() if path.is_file())
