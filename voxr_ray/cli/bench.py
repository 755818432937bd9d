"""``voxr-ray bench``: what listeners get from a running server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from voxr_ray.cli.client import DEFAULT_URL, client_options, key_option, reaching, refusal
from voxr_ray.cli.ending import FAILED

if TYPE_CHECKING:
    from voxr_ray.cli.loads import HttpSpeaker


@click.command()
@click.argument("url", default=DEFAULT_URL)
@click.option("-u", "--users", type=click.IntRange(1, 1000), multiple=True, default=(1, 4), help="At the same time.")
@click.option("-n", "--requests", type=click.IntRange(1, 10_000), default=3, show_default=True, help="Of each user.")
@click.option("--text", metavar="TEXT", help="What all of them ask for; otherwise three short sentences in turn.")
@click.option("--fields", default="{}", metavar="JSON", help="More fields of every request.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the table here.")
@key_option
def bench(
    url: str,
    users: tuple[int, ...],
    requests: int,
    text: str | None,
    fields: str,
    path: Path | None,
    api_key: str | None,
) -> None:
    """Measure a server at URL (http://localhost:8000): so many users, each asking again when the answer is complete.

    Every answer is streamed to a listener who starts to play with the first audio and waits where it comes late. Any
    server with OpenAI's interface can be measured. Exit code 1 says that requests failed.

    \b
    voxr-ray bench
    voxr-ray bench http://gpu:8000 -u 1 -u 16 -n 5 --fields '{"voice": "alice"}'
    """
    from voxr_ray.cli.loads import HttpSpeaker, shared_fields
    from voxr_ray.cli.tables import table

    try:
        shared = shared_fields(fields)
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"--fields: {error}") from error
    options = client_options(url, api_key)
    _check(options)
    speak = HttpSpeaker(options["base_url"], shared, key=api_key or "none")
    lines = asyncio.run(_measure(speak, users, requests, text))
    click.echo(table(lines))
    if path is not None:
        path.write_text(json.dumps({"url": url, "lines": lines}, indent=1) + "\n", encoding="utf-8")
    if any(line["failed"] for line in lines):
        click.get_current_context().exit(FAILED)


def _check(options: dict[str, Any]) -> None:
    """Find out at once whether there is a server at all, and whether it knows the key."""
    import httpx

    with reaching(options["base_url"]), httpx.Client(**options) as client:
        answer = client.get("/v1/models")
    if answer.status_code in (401, 403):
        raise refusal(answer)


async def _measure(speak: HttpSpeaker, users: Sequence[int], requests: int, text: str | None) -> list[dict[str, Any]]:
    """A line for each number of users."""
    from tqdm import tqdm

    from voxr_ray.cli.loads import TEXTS, closed_loop, summary

    texts = (text,) if text else TEXTS
    lines = []
    try:
        await closed_loop(speak, [{"input": texts[0]}], 1, lambda: None)  # connections, and what a first request makes
        with tqdm(total=sum(users) * requests, unit="request", disable=None) as bar:
            for count in users:
                asked = [{"input": texts[index % len(texts)], "seed": index} for index in range(count * requests)]
                start_s = time.perf_counter()
                calls = await closed_loop(speak, asked, count, bar.update)
                lines.append({"users": count} | summary(calls, time.perf_counter() - start_s))
                for error in sorted({call.error for call in calls if call.error}):
                    click.echo(error, err=True)
    finally:
        await speak.close()
    return lines
