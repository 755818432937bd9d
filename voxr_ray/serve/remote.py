"""Recordings given by address: from hosts and folders the operator trusts, and from nowhere else.

Without such settings every address is refused. A host is compared as a whole, redirects are not followed (they would
lead out of the list), and a folder holds only what lies in it once every link is resolved. Sizes are bounded by the
limit on bodies; the time is that of the request.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from voxr_ray.config import Settings
from voxr_ray.errors import BadAudio, InvalidRequest, TooLarge

_ADDRESS = re.compile(r"(https?|file)://", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
_CONNECT_S = 10.0
_SILENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class AudioLink:
    """Where a recording is.

    Attributes:
        address: An ``http(s)`` address on a trusted host, or a path in a trusted folder.
        param: Request field it came in.
    """

    address: httpx.URL | Path
    param: str


def link_of(value: str, param: str, settings: Settings) -> AudioLink | None:
    """The link a field holds, or ``None`` if it holds something else or no address is trusted at all.

    Raises:
        InvalidRequest: The address is none of those that are trusted.
    """
    text = value.strip()
    if not (settings.allowed_audio_hosts or settings.allowed_audio_folders) or not _ADDRESS.match(text):
        return None
    if text[:5].lower() == "file:":
        return AudioLink(_trusted_file(text, param, settings), param)
    try:
        # Parsed by the library that fetches it, so that both mean the same host.
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{param} is no valid address: {error}", param=param) from error
    usual = _PORTS[url.scheme]
    names = {f"{url.host}:{url.port or usual}"} | ({url.host} if url.port in (None, usual) else set())
    if url.userinfo or names.isdisjoint(host.lower() for host in settings.allowed_audio_hosts):
        raise InvalidRequest(
            f"{param} is an address on {url.host[:80]!r}, from which nothing is fetched here; send the audio itself "
            "as base64",
            param=param,
        )
    return AudioLink(url, param)


async def fetch_both(
    reference: bytes | AudioLink | None, prompt: bytes | AudioLink | None, most_bytes: int
) -> tuple[bytes | None, bytes | None]:
    """The files behind two fields; one that is both is fetched once and stays the same object."""
    first = await fetch(reference, most_bytes) if isinstance(reference, AudioLink) else reference
    if prompt is reference:
        return first, first
    return first, await fetch(prompt, most_bytes) if isinstance(prompt, AudioLink) else prompt


async def fetch(link: AudioLink, most_bytes: int) -> bytes:
    """The file behind a link.

    Raises:
        BadAudio: It cannot be had.
        TooLarge: It has more than ``most_bytes``.
    """
    try:
        if isinstance(link.address, Path):
            return await asyncio.to_thread(_read, link, link.address, most_bytes)
        return await _download(link, link.address, most_bytes)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = str(error) or type(error).__name__
        raise BadAudio(f"{link.param} could not be fetched: {reason[:200]}", param=link.param) from error


def _trusted_file(address: str, param: str, settings: Settings) -> Path:
    refusal = InvalidRequest(
        f"{param} is a file outside the folders that are read here; send the audio itself as base64", param=param
    )
    try:
        parts = urlsplit(address)
        if parts.netloc not in ("", "localhost"):
            raise refusal
        path = Path(unquote(parts.path)).resolve()
    except (OSError, ValueError) as error:  # loops of links, null bytes
        raise refusal from error
    if not any(path.is_relative_to(Path(folder).resolve()) for folder in settings.allowed_audio_folders):
        raise refusal
    return path


def _read(link: AudioLink, path: Path, most_bytes: int) -> bytes:
    if not path.is_file():
        raise BadAudio(f"{link.param} names no file that exists", param=link.param)
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_large(link, most_bytes)
    return data


async def _download(link: AudioLink, address: httpx.URL, most_bytes: int) -> bytes:
    data = bytearray()
    limits = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
    async with (
        httpx.AsyncClient(timeout=limits, follow_redirects=False, trust_env=False) as client,
        client.stream("GET", address, headers={"accept-encoding": "identity"}) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            raise BadAudio(f"{link.param} could not be fetched: status {answer.status_code}", param=link.param)
        async for part in answer.aiter_bytes():
            data += part
            if len(data) > most_bytes:
                raise _too_large(link, most_bytes)
    return bytes(data)


def _too_large(link: AudioLink, most_bytes: int) -> TooLarge:
    return TooLarge(f"the recording behind {link.param} is larger than {most_bytes} bytes", param=link.param)
