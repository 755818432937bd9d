"""``voxr-ray doctor``: whether a server would start here, and what to do if not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from voxr_ray.cli.ending import FAILED

if TYPE_CHECKING:
    from voxr_ray.cli.checks import Finding


@click.command()
@click.option("--model", help="Checkpoint to look at; VOXR_MODEL or the embedded one by default.")
def doctor(model: str | None) -> None:
    """Check Python, libraries, device, memory, model and ports, with the settings of the environment (VOXR_...).

    Nothing is started or downloaded. Each line says ok, or what is wrong and how to mend it: note for what a server
    lives with, FAIL for what would stop it; then the exit code is 1.

    \b
    voxr-ray doctor
    voxr-ray doctor --model openbmb/VoxCPM2
    """
    from voxr_ray.cli import checks

    failed = False
    for finding in _findings(model):
        failed |= finding.state is checks.State.FAIL
        click.echo(f"{finding.state:<5} {finding.what}")
        if finding.remedy:
            click.echo(f"      {finding.remedy}")
    if failed:
        click.get_current_context().exit(FAILED)


def _findings(model: str | None) -> Iterator[Finding]:
    """All of them, each as soon as it is known."""
    from voxr_ray.cli import checks

    yield checks.python()
    yield from checks.libraries()
    settings, finding = checks.settings({} if model is None else {"model": model}, os.environ)
    yield finding
    yield from checks.ports()
    if settings is None:
        return
    yield checks.voices_folder(settings)
    found = checks.device(settings)
    yield found
    if found.state is checks.State.FAIL:
        return
    folder, finding = checks.model_files(settings)
    yield finding
    if folder is not None:
        yield checks.memory(settings, folder)
