"""The pages and their files: complete, of one version, from here alone, and open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.serve.local import LocalServer
from voxr_ray.serve.page_http import PageFiles

DOCUMENTS = ("/", "/board")


async def parts_of(local: LocalServer, document: str) -> dict[str, str]:
    """Every file a document needs, by its address, found the way a browser finds them."""
    page = (await local.client.get(document)).text
    waiting = re.findall(r'(?:href|src)="(page/[^"]+)"', page)
    found: dict[str, str] = {}
    while waiting:
        address = waiting.pop()
        if address in found:
            continue
        answer = await local.client.get(f"/{address}")
        assert answer.status_code == 200, address
        found[address] = answer.text
        folder = address.rpartition("/")[0]
        modules = re.findall(r'(?:from |import )"\./([^"]+)"', answer.text)
        modules += re.findall(r'new URL\("\./([^"]+)", import\.meta\.url\)', answer.text)
        waiting += [f"{folder}/{name}" for name in modules]
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_a_page_is_whole_and_asks_nobody_else(local: LocalServer, document: str) -> None:
    answer = await local.client.get(document)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    parts = await parts_of(local, document)
    assert {Path(address).suffix for address in parts} == {".css", ".js", ".svg"}
    for content in (answer.text, *parts.values()):
        assert not re.search(r"(?:src|href|url\(|from|import)[\s=(]*[\"']?(?:https?:)?//", content)
        assert "@digest@" not in content
    assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=", answer.text), "the policy forbids what is inline"


async def test_every_file_in_the_folder_is_used(local: LocalServer) -> None:
    used = {Path(address).name for document in DOCUMENTS for address in await parts_of(local, document)}
    assert used | {"index.html", "board.html"} == set(PageFiles.read().files)


async def test_the_policy_allows_this_server_alone(local: LocalServer) -> None:
    digest = PageFiles.read().digest
    for path in (*DOCUMENTS, f"/page/{digest}/talk.js"):
        headers = (await local.client.get(path)).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert set(" ".join(policy.values()).split()) == {"'none'", "'self'", "blob:"}
        assert headers["x-content-type-options"] == "nosniff"


async def test_documents_are_asked_for_anew_and_files_never_again(local: LocalServer) -> None:
    for document in DOCUMENTS:
        first = await local.client.get(document)
        assert first.headers["cache-control"] == "no-cache"
        again = await local.client.get(document, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert (await local.client.get(document, headers={"if-none-match": '"other"'})).status_code == 200
        head = await local.client.head(document)
        assert (head.status_code, head.headers["etag"]) == (200, first.headers["etag"])
    for address in await parts_of(local, "/"):
        assert "immutable" in (await local.client.get(f"/{address}")).headers["cache-control"]


@pytest.mark.parametrize("name", ["nothing.js", "index.html", "..%2Fpage_http.py", "%2e%2e/page_http.py"])
async def test_what_is_no_file_is_not_found(local: LocalServer, name: str) -> None:
    assert (await local.client.get(f"/page/{PageFiles.read().digest}/{name}")).status_code == 404


async def test_a_file_of_another_version_is_not_found(local: LocalServer) -> None:
    answer = await local.client.get("/page/0123456789abcdef0123/talk.js")
    assert answer.status_code == 404
    assert "immutable" not in answer.headers.get("cache-control", "")


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    def digest(**files: str) -> str:
        for path in tmp_path.iterdir():
            path.unlink()
        for name, text in files.items():
            (tmp_path / f"{name}.js").write_text(text)
        return PageFiles.read(tmp_path).digest

    assert len({digest(a="1"), digest(a="2"), digest(b="1"), digest(a="1", b=""), digest(a="", b="1")}) == 5
    assert digest(a="1") == digest(a="1")


async def test_pages_are_open_and_what_they_ask_for_is_not() -> None:
    local = LocalServer({"api_keys": "key-one"})
    for document in DOCUMENTS:
        assert (await local.client.get(document)).status_code == 200
        assert await parts_of(local, document)
    assert (await local.client.get("/v1/board")).status_code == 401
    assert (await local.client.get("/v1/audio/voices")).status_code == 401
    assert (await local.client.get("/boards")).status_code == 401
    answer = await local.client.get("/v1/board", headers={"authorization": "Bearer key-one"})
    assert answer.status_code == 200
    await local.close()


async def test_pages_work_below_a_prefix(local: LocalServer) -> None:
    local.client._transport.root_path = "/tts"  # type: ignore[attr-defined]
    for document in DOCUMENTS:
        assert (await local.client.get(f"/tts{document}")).status_code == 200
    # Relative addresses: from /tts/ and /tts/board they lead to /tts/page/.
    page = (await local.client.get("/tts/")).text
    (script,) = re.findall(r'src="([^"]+)"', page)
    assert (await local.client.get(f"/tts/{script}")).status_code == 200
