"""The pages for people, ``/`` and ``/board``, their files, and the data of the board.

The files lie in the folder ``page`` as they are sent: there is no build step and no outside resource. They are read
once, when the application is built. The two documents are asked for anew each time (and answered with 304 if nothing
changed); everything else has an address that contains a digest of all files, so that it may be kept for ever, and so
that modules which import each other by relative addresses are always of one version.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from voxr_ray.errors import InvalidRequest
from voxr_ray.serve import openapi
from voxr_ray.serve.board import MOST_STEPS, Board

_FOLDER = Path(__file__).with_name("page")
_DIGEST_MARK = b"@digest@"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_HEADERS = {
    # Nothing but this server's own files and calls, and what a page makes itself of recordings and audio.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; worker-src 'self'; "
        "img-src 'self'; media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "permissions-policy": "microphone=(self)",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_STEPS_SHOWN = 128


@dataclass(frozen=True, slots=True)
class PageFiles:
    """The files of the pages.

    Attributes:
        digest: Of all of them.
        files: Content and content type by name.
    """

    digest: str
    files: dict[str, tuple[bytes, str]]

    @classmethod
    def read(cls, folder: Path = _FOLDER) -> PageFiles:
        """Read a folder; files of an unknown type are left out."""
        found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in _TYPES}
        hasher = hashlib.blake2b(digest_size=10)
        for name, content in found.items():
            hasher.update(f"{name} {len(content)} ".encode() + content)
        digest = hasher.hexdigest()
        files = {
            name: (content.replace(_DIGEST_MARK, digest.encode()), _TYPES[Path(name).suffix])
            for name, content in found.items()
        }
        return cls(digest, files)

    def answer(self, request: Request, name: str, cache: str) -> Response:
        """A file, or 304 if the caller has it."""
        headers = _HEADERS | {"etag": f'"{self.digest}"', "cache-control": cache}
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if headers["etag"] in known:
            return Response(status_code=304, headers=headers)
        content, media_type = self.files[name]
        return Response(content, headers=headers, media_type=media_type)


def add_page_routes(app: FastAPI) -> None:
    """Serve the pages."""
    files = PageFiles.read()
    documents = {"/": "index.html", "/board": "board.html"}

    async def document(request: Request) -> Response:
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        return files.answer(request, documents[path], "no-cache")

    async def part(request: Request, digest: str, name: str) -> Response:
        # Of another version (a page opened before an update): rather nothing than modules that do not fit together.
        if digest != files.digest or name not in files.files or name in documents.values():
            raise HTTPException(404, "no such file; reload the page")
        return files.answer(request, name, _FOR_EVER)

    for path in documents:
        app.add_api_route(path, document, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/page/{digest}/{name}", part, methods=["GET", "HEAD"], include_in_schema=False)


def add_board_route(app: FastAPI, board: Board) -> None:
    """Serve the data of the board."""

    @app.get("/v1/board", **openapi.BOARD)
    async def read_board(request: Request) -> dict[str, Any]:
        """What every replica is doing: its slots, its queue, its latest steps."""
        return await board.read(_steps_of(request))


def _steps_of(request: Request) -> int:
    """The query's ``steps``, checked by hand: errors of FastAPI's own have another shape."""
    given = request.query_params.get("steps", str(_STEPS_SHOWN))
    if not (given.isascii() and given.isdecimal() and int(given) <= MOST_STEPS):
        raise InvalidRequest(f"steps is {given[:40]!r}: give 0 to {MOST_STEPS}", param="steps")
    return int(given)
