"""The command line: its commands, and how each of them can end."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from voxr_ray.cli.bench import bench
from voxr_ray.cli.doctor import doctor
from voxr_ray.cli.ending import BROKEN_PIPE, INTERRUPTED, Failure, failure
from voxr_ray.cli.say import say
from voxr_ray.cli.serve import serve
from voxr_ray.cli.voices import voices
from voxr_ray.errors import VoxrError


class _Commands(click.Group):
    """Ends every command alike: one line and an exit code, never a traceback for what is foreseen."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except VoxrError as error:
            raise failure(error) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _drop_stdout()
            ctx.exit(BROKEN_PIPE)
        except OSError as error:  # a file or a port; what it is about is in its text
            raise Failure(str(error)) from error


def _drop_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter would complain of it at its end."""
    if sys.stdout is sys.__stdout__:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="voxr_ray", prog_name="voxr-ray")
@click.option("-v", "--verbose", is_flag=True, help="Say what happens on the way.")
def cli(verbose: bool) -> None:
    """VoxCPM2 text-to-speech: speak, serve, and look after voices.

    \b
    voxr-ray say "Hello world." -o hello.mp3
    voxr-ray serve model=openbmb/VoxCPM2
    voxr-ray say book.txt -o book.opus --url http://localhost:8000
    voxr-ray doctor --model openbmb/VoxCPM2

    \b
    Exit codes:
      0    done
      1    it failed: the model, the server, the network, a file
      2    the command line or the request has to be changed
      75   the server has no room now; try again later
      130  interrupted (Ctrl-C)
      141  whoever read the output has left
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s", stream=sys.stderr)
    if not verbose:
        # Its lines about every request are of interest to nobody who only listens.
        logging.getLogger("httpx").setLevel(logging.WARNING)


for command in (say, voices, serve, bench, doctor):
    cli.add_command(command)


def main() -> None:
    """Entry point of ``voxr-ray``."""
    cli(prog_name="voxr-ray")
