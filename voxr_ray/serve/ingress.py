"""The HTTP surface of a router: paths, methods and bodies. Everything behind them is :class:`SpeechService`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from voxr_ray.errors import Cancelled, EngineStopped
from voxr_ray.serve import openapi
from voxr_ray.serve.access import KeyGate
from voxr_ray.serve.batch import answer_batch
from voxr_ray.serve.http_errors import BodyTooLarge, RequestTimeout, UnsupportedMediaType, install
from voxr_ray.serve.http_schema import unknown_model
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.voices_http import add_voice_routes
from voxr_ray.serve.ws import add_session_route

_HEALTH_TIMEOUT_S = 5.0


def build_http_app(speech: SpeechService) -> FastAPI:
    """The application a router serves.

    Args:
        speech: Does the work.
    """
    settings = speech.settings
    app = openapi.DescribedApp(redirect_slashes=False)
    install(app)
    if settings.api_keys:
        app.add_middleware(KeyGate, keys=settings.api_keys)
    if settings.cors_origins:  # added last, so outermost: a page may read a 401, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=openapi.EXPOSED_HEADERS,
        )
    started_s = int(time.time())

    @app.post("/v1/audio/speech", **openapi.SPEECH)
    async def create_speech(request: Request) -> Response:
        """Speak a text."""
        body, request_id, deadline = await read_json(request)
        return await speech.answer(body, request_id, deadline)

    @app.post("/v1/audio/speech/batch", **openapi.BATCH)
    async def create_batch(request: Request) -> Response:
        """Speak many texts: one result or error for each, in their order."""
        body, request_id, deadline = await read_json(request)
        return await answer_batch(speech, body, request_id, deadline)

    @app.get("/v1/models", **openapi.MODELS)
    async def list_models() -> dict[str, Any]:
        """The model that is served, under each of its names."""
        return {"object": "list", "data": [await model_card(name) for name in settings.model_names]}

    @app.get("/v1/models/{model_id:path}", **openapi.MODEL)
    async def get_model(model_id: str) -> dict[str, Any]:
        """Facts of a model by its name."""
        if model_id not in settings.model_names:
            raise unknown_model(model_id, settings)
        return await model_card(model_id)

    @app.get("/health", **openapi.HEALTH)
    async def health() -> Response:
        """Whether requests can be served: 200 if a replica answers. With ``min_replicas`` 0 none need run."""
        if settings.min_replicas != 0:
            try:
                async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                    await speech.probe()
            except TimeoutError as error:
                raise EngineStopped(
                    f"no replica answered within {_HEALTH_TIMEOUT_S:g} s", retry_after_s=_HEALTH_TIMEOUT_S
                ) from error
        return JSONResponse({"status": "ok", "model": settings.served_name})

    async def read_json(request: Request) -> tuple[bytes, str, float]:
        """Body, id and deadline of a request with a JSON body."""
        deadline = asyncio.get_running_loop().time() + settings.request_timeout_s
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise UnsupportedMediaType(f"content-type is {media_type[:60]!r}; application/json is needed")
        body = await _read_body(request, settings.max_body_bytes, deadline)
        return body, request.headers.get("x-request-id", "")[:128], deadline

    async def model_card(name: str) -> dict[str, Any]:
        info = await speech.info()
        card = {"id": name, "object": "model", "created": started_s, "owned_by": "voxr_ray",
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
