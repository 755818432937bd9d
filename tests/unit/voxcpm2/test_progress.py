"""Lines of the log about long work: none of what is quick, one every few seconds of what is not."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from voxr_ray.voxcpm2 import progress
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.hub import _Bar, default_checkpoint
from voxr_ray.voxcpm2.progress import PERIOD_S, Progress

LOGGER = "voxr_ray.voxcpm2.progress"


def test_a_line_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    told = Progress("reading", 10 * 2**20, clock=lambda: now[0])
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(10):
            now[0] += PERIOD_S / 2
            told.add(2**20)
    assert caplog.messages == [
        f"reading: {done}0 %, {done} of 10 MiB, {2 / PERIOD_S:.1f} MiB/s" for done in (2, 4, 6, 8, 10)
    ]
    assert told.seconds == 5 * PERIOD_S


def test_quick_work_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told = Progress("reading", clock=lambda: 1.0)
    with caplog.at_level(logging.INFO, LOGGER):
        told.add(2**30)
    assert not caplog.messages


def test_weights_are_counted_to_the_end(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PERIOD_S", 0.0)
    with caplog.at_level(logging.INFO, LOGGER):
        load_network(CheckpointFiles.find(default_checkpoint()))
    for name in ("model.safetensors", "audiovae.safetensors"):
        lines = [line for line in caplog.messages if line.startswith(f"reading {name}")]
        shares = [int(line.split(": ")[1].split(" %")[0]) for line in lines]
        assert shares == sorted(shares)
        assert len(shares) > 20
        assert shares[-1] >= 98  # all but the file's own header


FILES = {"config.json": b"{}", "model.safetensors": bytes(3 * 2**20)}
COMMIT = "0" * 40


class OneRepository(http.server.BaseHTTPRequestHandler):
    """As much of the hub's interface as a download needs."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in FILES]
            tree = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in FILES.items()]
            card = {"id": "some/model", "sha": COMMIT, "siblings": siblings}
            self._send(json.dumps(tree if "/tree/" in self.path else card).encode())
        else:
            self._send(FILES[self.path.rsplit("/", 1)[1]])

    do_HEAD = do_GET  # noqa: N815

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{len(data)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub_url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OneRepository) as server:
        thread = threading.Thread(target=partial(server.serve_forever, 0.05))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_download_without_a_terminal_writes_lines(
    hub_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PERIOD_S", 0.0)
    with caplog.at_level(logging.INFO, LOGGER):
        folder = snapshot_download("some/model", endpoint=hub_url, cache_dir=tmp_path, tqdm_class=_Bar)
    assert (Path(folder) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    lines = [line for line in caplog.messages if line.startswith("downloading the model: ")]
    assert "100 %, 3 of 3 MiB" in lines[-1]
