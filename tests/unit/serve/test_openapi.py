"""The OpenAPI document: complete, and true for whatever is sent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.unit.serve.local import LocalServer
from voxr_ray.serve.batch import SHARED_FIELDS
from voxr_ray.serve.speech_body import SpeechBody

OPERATIONS = [
    ("/v1/audio/speech", "POST"),
    ("/v1/audio/speech/batch", "POST"),
    ("/v1/audio/voices", "GET"),
    ("/v1/audio/voices", "POST"),
    ("/v1/audio/voices/{name}", "DELETE"),
    ("/v1/models", "GET"),
    ("/v1/models/{model_id}", "GET"),
    ("/v1/board", "GET"),
    ("/health", "GET"),
]


@pytest.fixture(scope="module")
def described() -> Iterator[schemathesis.BaseSchema]:
    local = LocalServer({"max_len": 20})
    yield schemathesis.openapi.from_asgi("/openapi.json", local.app)
    local.replica.__del__()


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=str)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_answer_is_one_that_is_described(
    described: schemathesis.BaseSchema, path: str, method: str, mode: GenerationMode
) -> None:
    @settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=described[path][method].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    try:
        check()
    except Unsatisfiable:
        assert method != "POST", "only a request without fields cannot be wrong"


async def test_every_path_field_answer_and_header_is_described(local: LocalServer) -> None:
    document = (await local.client.get("/openapi.json")).json()
    assert set(document["paths"]) == {path for path, _ in OPERATIONS}
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert "422" not in operation["responses"]
            assert all(answer["description"] for answer in operation["responses"].values())
    batch = document["paths"]["/v1/audio/speech/batch"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(batch["properties"]) == {"items", *SHARED_FIELDS}
    assert set(batch["properties"]["items"]["items"]["properties"]) == {"input", *SHARED_FIELDS}
    speech = document["paths"]["/v1/audio/speech"]["post"]
    fields = speech["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(fields) == set(SpeechBody.model_fields)
    assert fields["inference_timesteps"]["minimum"] == 2
    assert fields["cfg_value"]["maximum"] == 10
    answer = await local.speak(input="hi @patches=3@")
    own = {name for name in answer.headers if name.startswith("x-voxr-")}
    assert own <= set(speech["responses"]["200"]["headers"])
    assert answer.headers["content-type"] in speech["responses"]["200"]["content"]
    for status in ("400", "401", "404", "408", "413", "415", "500", "503"):
        assert speech["responses"][status]["description"].startswith("Error, by code: ")
