"""``voxr-ray serve``: Ray's own ``serve run`` of this application."""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[NAME=VALUE]... [SERVE RUN OPTIONS]...")
def serve(arguments: tuple[str, ...]) -> None:
    """Serve on http://localhost:8000 until Ctrl-C.

    The same as `serve run voxr_ray:app` with these arguments: settings as name=value, and the options of `serve run`.

    \b
    voxr-ray serve
    voxr-ray serve model=openbmb/VoxCPM2 max_batch=32
    voxr-ray serve --name speech --route-prefix /speech num_replicas=2
    """
    from ray.serve.scripts import cli

    cli.main(["run", "voxr_ray:app", *arguments], prog_name="serve", standalone_mode=False)
