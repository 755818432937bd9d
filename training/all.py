"""All stages, one after the other, the two long ones side by side. Stopped, it goes on where it was.

``--tiny`` makes a checkpoint that knows nothing, in a minute: it proves that the stages fit together.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def _command(stage: str, work: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", f"training.{stage}", "--work", str(work), *options]


def stages(work: Path, *, tiny: bool) -> list[list[list[str]]]:
    """Groups of commands; those of a group run side by side."""
    steps = (
        {"decoder": "9000", "finish": "13000", "encoder": "6000", "lm": "6000"}
        if not tiny
        else {"decoder": "2", "finish": "3", "encoder": "2", "lm": "2"}
    )
    small = ["--eager", "--rows", "2"] if tiny else []
    return [
        [_command("corpus", work, *(["--utterances", "40"] if tiny else []))],
        [_command("teacher", work)],
        [_command("latents", work)],
        [
            _command("vae", work, "--half", "decoder", "--steps", steps["decoder"], *small),
            _command("lm", work, "--steps", steps["lm"], *(["--positions", "150"] if tiny else [])),
        ],
        [_command("vae", work, "--half", "encoder", "--steps", steps["encoder"], *small)],
        [_command("drawn", work)],
        [
            _command(
                "vae",
                work,
                "--half",
                "decoder",
                "--source",
                "drawn",
                "--steps",
                steps["finish"],
                "--rate",
                "3e-3",
                *small,
            )
        ],
        [_command("export", work)],
        [_command("evaluate", work, *(["--limit", "2", "--parts", "closed"] if tiny else ["--seeds", "5"]))],
        [_command("card", work)],
    ]


def run(work: Path, *, tiny: bool) -> None:
    """Run all stages.

    Raises:
        subprocess.CalledProcessError: A stage failed; the others of its group are waited for.
    """
    for group in stages(work, tiny=tiny):
        started = [subprocess.Popen(command) for command in group]  # noqa: S603
        for process, command in zip(started, group, strict=True):
            if code := process.wait():
                raise subprocess.CalledProcessError(code, command)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that training writes")
    parser.add_argument("--tiny", action="store_true", help="prove in a minute that the stages fit together")
    given = parser.parse_args()
    run(given.work, tiny=given.tiny)
