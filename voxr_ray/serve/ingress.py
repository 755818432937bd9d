"""The HTTP surface of a router: paths, methods and bodies. Everything behind them is :class:`SpeechService`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.cors import CORSMiddleware

from voxr_ray.errors import Unavailable
from voxr_ray.serve import openapi
from voxr_ray.serve.access import KeyGate
from voxr_ray.serve.answers import Answers
from voxr_ray.serve.batch import answer_batch
from voxr_ray.serve.bodies import Bodies
from voxr_ray.serve.http_errors import UnsupportedMediaType, install
from voxr_ray.serve.http_schema import unknown_model
from voxr_ray.serve.logs import request_id_of
from voxr_ray.serve.page_http import add_board_route, add_page_routes
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
    install(app, speech.metrics.http_error)
    if settings.api_keys:
        app.add_middleware(KeyGate, keys=settings.api_keys, count=speech.metrics.http_error)
    if settings.cors_origins:  # added last, so outermost: a page may read a 401, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=openapi.EXPOSED_HEADERS,
        )
    started_s = int(time.time())
    answers = Answers(speech)
    bodies = Bodies(settings.max_body_bytes, settings.max_held_body_bytes)

    @app.post("/v1/audio/speech", **openapi.SPEECH)
    async def create_speech(request: Request) -> Response:
        """Speak a text."""
        deadline = begin(request)
        async with bodies.read(request, deadline) as body:
            return await answers.answer(body, request_id_of(request.headers), deadline)

    @app.post("/v1/audio/speech/batch", **openapi.BATCH)
    async def create_batch(request: Request) -> Response:
        """Speak many texts: one result or error for each, in their order."""
        deadline = begin(request)
        async with bodies.read(request, deadline) as body:
            return await answer_batch(answers, body, request_id_of(request.headers), deadline)

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
                raise Unavailable(
                    f"no replica answered within {_HEALTH_TIMEOUT_S:g} s", retry_after_s=_HEALTH_TIMEOUT_S
                ) from error
        return JSONResponse({"status": "ok", "model": settings.served_name})

    def begin(request: Request) -> float:
        """Check that a request brings JSON, and give the time at which its answer must be complete."""
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise UnsupportedMediaType(f"content-type is {media_type[:60]!r}; application/json is needed")
        return asyncio.get_running_loop().time() + settings.request_timeout_s

    async def model_card(name: str) -> dict[str, Any]:
        info = await speech.info()
        card = {"id": name, "object": "model", "created": started_s, "owned_by": "voxr_ray",
                "sample_rate": info.spec.sample_rate_hz}  # fmt: skip
        return card if info.notice is None else card | {"notice": info.notice}

    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)
    add_voice_routes(app, speech.voices, settings.request_timeout_s)
    add_session_route(app, speech)
    add_board_route(app, speech.board)
    add_page_routes(app)
    return app
