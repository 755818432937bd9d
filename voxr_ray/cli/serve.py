"""``voxr-ray serve``: Ray's own ``serve run`` of this application."""

from __future__ import annotations

import os
from pathlib import Path

import click

from voxr_ray.cli.ending import Failure

PORT = 8000
"""Serve's own choice."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--port", type=click.IntRange(1, 65535), help=f"Listen here, instead of on {PORT}.")
@click.option("--host", help="Listen on this address, such as 0.0.0.0, instead of for this machine alone.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[NAME=VALUE]... [SERVE RUN OPTIONS]...")
def serve(port: int | None, host: str | None, arguments: tuple[str, ...]) -> None:
    """Serve on http://localhost:8000 until Ctrl-C.

    The same as `serve run voxr_ray:app` with these arguments: settings as name=value, and the options of `serve run`.
    Where a Ray cluster runs already it serves there, on the port that was chosen for the cluster.

    \b
    voxr-ray serve
    voxr-ray serve --port 8001
    voxr-ray serve model=openbmb/VoxCPM2 max_batch=32
    voxr-ray serve --name speech --route-prefix /speech num_replicas=2    on http://localhost:8000/speech
    """
    for argument in arguments:
        if argument.endswith((".yaml", ".yml")):
            raise click.UsageError(f"a deployment file is for Ray's own command: serve run {argument}")
    if not _joins_a_cluster(arguments):
        _check_port(port or PORT)
    elif port is not None or host is not None:
        raise click.UsageError("a cluster that runs already has its address and port; see http_options in serve.yaml")
    if port is not None or host is not None:
        _start_serve(arguments, host, port)
    from ray.serve.scripts import cli

    cli.main(["run", "voxr_ray:app", *arguments], prog_name="serve", standalone_mode=False)


def _joins_a_cluster(arguments: tuple[str, ...]) -> bool:
    """Whether Ray would use a cluster that somebody else has started (``ray start`` leaves its address in a file)."""
    named = any(each in ("-a", "--address") or each.startswith("--address=") for each in arguments)
    note = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"  # noqa: S108
    return named or "RAY_ADDRESS" in os.environ or note.exists()


def _check_port(port: int) -> None:
    """Serve would say it with a page of tracebacks, and two of its own proxies would share a port in silence."""
    from voxr_ray.cli.checks import is_free

    if not is_free(port):
        raise Failure(f"port {port} is taken: end the program that listens there, or choose another one with --port")


def _start_serve(arguments: tuple[str, ...], host: str | None, port: int | None) -> None:
    """Start Serve where ``serve run`` has no option to say it; settings are checked first, as ``serve run`` does."""
    from ray.serve.scripts import convert_args_to_dict, run

    from voxr_ray.app import app

    context = run.make_context("serve run", ["voxr_ray:app", *arguments])
    app(convert_args_to_dict(context.params["arguments"]))
    import ray
    from ray import serve as ray_serve

    given = {"host": host, "port": port}
    ray.init(namespace="serve")
    ray_serve.start(http_options={name: value for name, value in given.items() if value is not None})
