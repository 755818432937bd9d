"""Keys, and pages of other origins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.serve.local import LocalServer
from voxr_ray.config import Settings
from voxr_ray.errors import ConfigurationError
from voxr_ray.serve.access import with_keys

SPEECH = {"input": "hi @patches=3@"}


async def post(local: LocalServer, **headers: str) -> Any:
    return await local.client.post("/v1/audio/speech", json=SPEECH, headers=headers)


async def test_without_a_key_nothing_is_read_or_made() -> None:
    local = LocalServer({"api_keys": "key-one,key-two"})
    for authorization in (None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer key-on", "Bearer key-one2", "key-one",
                          "Basic key-one", "Bearer key-one,key-two", "Bearer schlüssel".encode("latin-1")):  # fmt: skip
        headers: dict[str, Any] = {} if authorization is None else {"authorization": authorization}
        for answer in (await post(local, **headers), await local.client.get("/v1/models", headers=headers)):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert "key-" not in error["message"]
    assert (await local.client.get("/v1/nothing")).status_code == 401, "nor does it tell which paths there are"
    assert (await local.counts()).submitted == 0
    await local.close()


async def test_every_key_opens_and_health_is_open() -> None:
    local = LocalServer({"api_keys": ["key-one", "key-two"]})
    assert (await local.client.get("/health")).status_code == 200
    for authorization in ("Bearer key-one", "bearer key-two", "Bearer  key-two "):
        assert (await post(local, authorization=authorization)).status_code == 200
    await local.close()


async def test_a_websocket_needs_a_key_before_it_opens() -> None:
    local = LocalServer({"api_keys": ["key-one"]})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/v1/audio/speech/stream", "headers": [], "query_string": b""}
    await local.app(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "a key is needed"}]
    await local.close()


async def test_the_gate_knows_the_prefix_it_is_mounted_at() -> None:
    local = LocalServer({"api_keys": ["key-one"]})
    local.client._transport.root_path = "/tts"  # type: ignore[attr-defined]
    assert (await local.client.get("/tts/health")).status_code == 200
    assert (await local.client.get("/tts/v1/models")).status_code == 401
    await local.close()


class TestKeysOfAFile:
    def test_lines_are_keys(self, tmp_path: Path) -> None:
        file = tmp_path / "keys"
        file.write_text("# who\nkey-one\n\n  key-two \n")
        settings = with_keys(Settings.load({"api_keys_file": str(file), "api_keys": "key-three"}, {}))
        held = {key.get_secret_value() for key in settings.api_keys}
        assert held == {"key-one", "key-two", "key-three"}
        assert settings.api_keys_file is None, "deployments need not see the file"

    @pytest.mark.parametrize("content", [None, b"", b"# nobody\n", b"\xff\xfe\x00"])
    def test_a_file_without_a_key_opens_nothing(self, tmp_path: Path, content: bytes | None) -> None:
        if content is not None:
            (tmp_path / "keys").write_bytes(content)
        with pytest.raises(ConfigurationError, match="api_keys_file"):
            with_keys(Settings.load({"api_keys_file": str(tmp_path / "keys")}, {}))


def test_keys_are_never_shown() -> None:
    settings = Settings.load({}, {"VOXR_API_KEYS": "key-one, key-two"})
    assert [key.get_secret_value() for key in settings.api_keys] == ["key-one", "key-two"]
    assert "key-one" not in repr(settings)
    with pytest.raises(ConfigurationError) as caught:
        Settings.load({"api_keys": ["key-one", ""]}, {})
    assert "key-one" not in str(caught.value)


class TestOtherOrigins:
    async def test_none_may_call_unless_listed(self, local: LocalServer) -> None:
        answer = await local.client.post("/v1/audio/speech", json=SPEECH, headers={"origin": "https://example.org"})
        assert "access-control-allow-origin" not in answer.headers

    async def test_those_that_are_listed(self) -> None:
        local = LocalServer({"cors_origins": "https://example.org", "api_keys": "key-one"})
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        for origin, allowed in (("https://example.org", True), ("https://example.com", False)):
            flight = await local.client.options("/v1/audio/speech", headers={"origin": origin} | asked)
            assert (flight.status_code == 200) is allowed
            refused = await post(local, origin=origin)
            assert refused.status_code == 401
            answer = await post(local, origin=origin, authorization="Bearer key-one")
            assert answer.status_code == 200
            for each in (flight, refused, answer):
                assert (each.headers.get("access-control-allow-origin") == origin) is allowed
            if allowed:
                assert "x-voxr-seed" in answer.headers["access-control-expose-headers"]
        await local.close()
