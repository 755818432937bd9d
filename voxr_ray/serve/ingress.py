"""The HTTP surface of a router: paths, methods and bodies. Everything behind them is :class:`SpeechService`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from voxr_ray.errors import Cancelled
from voxr_ray.serve.http_errors import BodyTooLarge, RequestTimeout, UnknownModel, UnsupportedMediaType, install
from voxr_ray.serve.http_schema import SpeechBody
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.voices_http import add_voice_routes
from voxr_ray.serve.ws import add_session_route

_HEALTH_TIMEOUT_S = 10.0


def build_http_app(speech: SpeechService) -> FastAPI:
    """The application a router serves.

    Args:
        speech: Does the work.
    """
    settings = speech.settings
    app = FastAPI(title="voxr_ray", description="VoxCPM2 text-to-speech", redirect_slashes=False)
    install(app)
    started_s = int(time.time())

    schema = {"requestBody": {"required": True, "content": {"application/json": {
        "schema": SpeechBody.model_json_schema()}}}}  # fmt: skip

    @app.post("/v1/audio/speech", openapi_extra=schema, response_class=Response)
    async def create_speech(request: Request) -> Response:
        """Speak a text."""
        deadline = asyncio.get_running_loop().time() + settings.request_timeout_s
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise UnsupportedMediaType(f"content-type is {media_type[:60]!r}; application/json is needed")
        body = await _read_body(request, settings.max_body_bytes, deadline)
        return await speech.answer(body, request.headers.get("x-request-id", "")[:128], deadline)

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [await model_card()]}

    @app.get("/v1/models/{model_id:path}")
    async def get_model(model_id: str) -> dict[str, Any]:
        """Facts of a model by its name."""
        if model_id != settings.served_name:
            raise UnknownModel(
                f"model {model_id[:80]!r} is not served here; {settings.served_name!r} is", param="model"
            )
        return await model_card()

    @app.get("/health")
    async def health() -> Response:
        """Whether requests can be served: 200 if a replica answers. With ``min_replicas`` 0 none need run."""
        if settings.min_replicas != 0:
            try:
                async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                    await speech.probe()
            except TimeoutError as error:
                raise RequestTimeout(f"no replica answered within {_HEALTH_TIMEOUT_S:g} s") from error
        return JSONResponse({"status": "ok", "model": settings.served_name})

    async def model_card() -> dict[str, Any]:
        info = await speech.info()
        card = {"id": settings.served_name, "object": "model", "created": started_s, "owned_by": "voxr_ray",
                "sample_rate": info.spec.sample_rate_hz}  # fmt: skip
        return card if info.notice is None else card | {"notice": info.notice}

    add_voice_routes(app, speech.voices, settings.request_timeout_s)
    add_session_route(app, speech)
    return app


async def _read_body(request: Request, most_bytes: int, deadline: float) -> bytes:
    """Read a body that may lie about its length, up to a limit and a time."""
    too_large = BodyTooLarge(f"the body is larger than {most_bytes} bytes, the most that is read")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout_at(deadline):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise too_large
    except ClientDisconnect as error:
        raise Cancelled("the caller left while sending the body") from error
    except TimeoutError as error:
        raise RequestTimeout("the body did not arrive within the time a request may take") from error
    return bytes(body)
