"""``voxr-ray voices``: the stored voices of a server, or of a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

import click

from voxr_ray.cli.client import DEFAULT_URL, client_options, key_option, reaching, refusal

if TYPE_CHECKING:
    from voxr_ray.serve.voice_store import VoiceStore

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Card:
    """What a list shows of a voice."""

    name: str
    created_at_s: int | None
    has_transcript: bool


class Shelf(Protocol):
    """Where voices are."""

    def list(self) -> list[Card]:
        """All of them."""

    def add(self, name: str, recording: Path, text: str | None, consent: str | None) -> None:
        """Store one."""

    def remove(self, name: str) -> None:
        """Remove one."""


class ServerShelf:
    """The voices of a server."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._api_key = api_key

    def list(self) -> list[Card]:
        """All of them, the model's own first."""
        told = self._ask("GET", "/v1/audio/voices")["voices"]
        return [Card(each["name"], each.get("created_at"), bool(each.get("has_transcript"))) for each in told]

    def add(self, name: str, recording: Path, text: str | None, consent: str | None) -> None:
        """Upload one."""
        texts = {"name": name, "ref_text": text, "consent": consent}
        fields = {field: value for field, value in texts.items() if value is not None}
        file = {"audio_sample": (recording.name, recording.read_bytes())}
        self._ask("POST", "/v1/audio/voices", data=fields, files=file)

    def remove(self, name: str) -> None:
        """Delete one."""
        self._ask("DELETE", f"/v1/audio/voices/{quote(name, safe='')}")

    def _ask(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        import httpx

        with reaching(self._url), httpx.Client(**client_options(self._url, self._api_key)) as client:
            answer = client.request(method, path, **content)
        if answer.status_code != 200:
            raise refusal(answer)
        told: dict[str, Any] = answer.json()
        return told


class FolderShelf:
    """The voices of a folder, such as a server's ``voices_dir``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> list[Card]:
        """All of them."""
        return [Card(each.name, each.created_at_s, each.has_text) for each in self._store().list()]

    def add(self, name: str, recording: Path, text: str | None, consent: str | None) -> None:
        """Check and store one."""
        self._store().add(name, recording.read_bytes(), text, consent)

    def remove(self, name: str) -> None:
        """Remove one."""
        self._store().delete(name)

    def _store(self) -> VoiceStore:
        from voxr_ray.config import Settings
        from voxr_ray.serve.voice_store import VoiceStore

        limits = Settings()
        return VoiceStore(self._folder, max_seconds=limits.max_reference_seconds, max_voices=limits.max_voices)


def _shelf_options(command: Command) -> Command:
    for option in (
        click.option("--voices-dir", type=click.Path(path_type=Path), help="A folder of voices, without a server."),
        key_option,
        click.option("--url", help=f"Address of the server; {DEFAULT_URL} by default."),
    ):
        command = option(command)
    return command


def _shelf(url: str | None, api_key: str | None, voices_dir: Path | None) -> Shelf:
    if voices_dir is None:
        return ServerShelf(url or DEFAULT_URL, api_key)
    if url is not None:
        raise click.UsageError("--url and --voices-dir exclude each other")
    return FolderShelf(voices_dir.expanduser())


@click.group()
def voices() -> None:
    """Stored voices: list, add and remove them.

    \b
    voxr-ray voices add alice alice.wav --text "What she says in it." --consent "signed, 2026-03-01"
    voxr-ray voices list --url https://speech.example.org
    voxr-ray voices rm alice
    """


@voices.command("list")
@_shelf_options
def list_voices(url: str | None, api_key: str | None, voices_dir: Path | None) -> None:
    """Show all voices: name, when it was added, and whether its transcript is known."""
    for card in _shelf(url, api_key, voices_dir).list():
        added = "" if card.created_at_s is None else f"{datetime.fromtimestamp(card.created_at_s, UTC):%Y-%m-%d}"
        click.echo(f"{card.name:<32} {added:<12} {'transcript' if card.has_transcript else ''}".rstrip())


@voices.command()
@click.argument("name")
@click.argument("recording", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--text", help="What the recording says: speech in this voice then continues from it.")
@click.option("--consent", help="Anything to keep about the speaker's consent.")
@_shelf_options
def add(
    name: str,
    recording: Path,
    text: str | None,
    consent: str | None,
    url: str | None,
    api_key: str | None,
    voices_dir: Path | None,
) -> None:
    """Store RECORDING (1 to 60 seconds of one speaker) as the voice NAME."""
    _shelf(url, api_key, voices_dir).add(name, recording, text, consent)
    click.echo(f"added {name}", err=True)


@voices.command()
@click.argument("names", nargs=-1, required=True)
@_shelf_options
def rm(names: tuple[str, ...], url: str | None, api_key: str | None, voices_dir: Path | None) -> None:
    """Remove voices."""
    shelf = _shelf(url, api_key, voices_dir)
    for name in names:
        shelf.remove(name)
        click.echo(f"removed {name}", err=True)
