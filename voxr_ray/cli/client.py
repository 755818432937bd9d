"""A server seen from the command line: its address and key, and its refusals as the errors they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from voxr_ray.errors import EngineError, Unavailable, VoxrError

if TYPE_CHECKING:
    import httpx

Command = TypeVar("Command", bound=Callable[..., Any])

KEY_VARIABLE = "VOXR_API_KEY"
"""The caller's key. A server refuses to start with it, lest it be taken for the keys that a server asks for."""

DEFAULT_URL = "http://localhost:8000"

_CONNECT_S = 10.0
_READ_S = 600.0
"""A whole answer may take a server this long before its first byte."""


def key_option(command: Command) -> Command:
    """The option ``--api-key``."""
    return click.option(
        "--api-key", envvar=KEY_VARIABLE, help=f"Key of the server; better in {KEY_VARIABLE}.", metavar="KEY"
    )(command)


def client_options(url: str, api_key: str | None) -> dict[str, Any]:
    """Arguments of an httpx client of a server.

    Raises:
        click.UsageError: The address is none.
    """
    import httpx

    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise click.UsageError(f"--url {url!r} is no address: it begins with http:// or https://")
    headers = {} if not api_key else {"authorization": f"Bearer {api_key}"}
    return {"base_url": base, "headers": headers, "timeout": httpx.Timeout(_READ_S, connect=_CONNECT_S)}


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """What goes wrong on the way to a server and back, as errors of the project's tree."""
    import httpx

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Unavailable(f"{url} does not answer ({error}): is it running? voxr-ray serve starts a server") from error
    except httpx.InvalidURL as error:
        raise click.UsageError(f"--url {url!r} is no address: {error}") from error
    except httpx.TimeoutException as error:
        raise Unavailable(f"{url} said nothing for {_READ_S:.0f} s") from error
    except httpx.HTTPError as error:
        raise EngineError(f"{url} broke off: {error}") from error


def refusal(answer: httpx.Response) -> VoxrError:
    """The error that an answer stands for, once it is read."""
    import httpx

    from voxr_ray.serve.http_errors import error_of

    try:
        told = answer.json()["error"]
        message, code, param = str(told["message"]), told.get("code"), told.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, param = f"{answer.status_code} {answer.reason_phrase}: {answer.text[:200]}", None, None
        if answer.status_code == httpx.codes.NOT_FOUND:  # whoever answers there is another
            message = f"{answer.url} is not there ({message}): does the address lack the server's route prefix?"
    after = answer.headers.get("retry-after", "")
    return error_of(
        answer.status_code, code, message, param=param, retry_after_s=float(after) if after.isdecimal() else None
    )
