"""Many speech requests in one: ``POST /v1/audio/speech/batch`` and the router's ``synthesize_batch``.

Runs on a router's event loop. The items know nothing of each other: each has its own result or its own error, in the
order they came in, and a bounded number of them is rendered at a time, so that one call cannot fill every queue.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response

from voxr_ray.config import Settings
from voxr_ray.errors import EngineError, InvalidRequest, TooLarge, VoxrError
from voxr_ray.messages import SynthRequest, SynthResult
from voxr_ray.serve.answers import Answers
from voxr_ray.serve.http_errors import UnknownField, body_of, from_validation
from voxr_ray.serve.output import SpokenFile, usage
from voxr_ray.serve.speech import SpeechService
from voxr_ray.serve.speech_body import SpeechBody, refuse_repeats

_log = logging.getLogger(__name__)

T = TypeVar("T")

_STREAMING = frozenset({"stream", "stream_format"})

SHARED_FIELDS = tuple(name for name in SpeechBody.model_fields if name not in _STREAMING | {"input"})
"""Fields a batch may give for all of its items."""


class BatchBody(BaseModel):
    """Fields of a batch request: items, and what they share.

    Every item has the fields of a speech request but ``stream`` and ``stream_format``. All of those but ``input`` may
    also stand beside ``items``, for the items that do not say themselves.
    """

    model_config = ConfigDict(extra="allow", strict=True, use_attribute_docstrings=True)

    items: list[dict[str, Any]]
    """The requests, in the order their results are given."""


def parse_batch(body: bytes, settings: Settings) -> list[bytes]:
    """The bodies of the speech requests a batch consists of; what is wrong inside one is left to it.

    Raises:
        RequestError: The batch as a whole is at fault.
    """
    try:
        batch = BatchBody.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from error
    refuse_repeats(body)
    shared = batch.model_extra or {}
    for name in shared:
        if name in _STREAMING | {"input"}:
            raise InvalidRequest(f"{name[:80]} cannot be given for all items of a batch", param=name)
        if name not in SHARED_FIELDS:
            raise UnknownField(f"unknown field {name[:80]!r}", param=name[:80])
    _check_count(len(batch.items), settings)
    if not batch.items:
        raise InvalidRequest("items is empty: give at least one", param="items")
    given = {name: value for name, value in shared.items() if value is not None}
    return [
        json.dumps(given | {name: value for name, value in item.items() if value is not None or name not in given})
        .encode()
        for item in batch.items
    ]  # fmt: skip


async def answer_batch(answers: Answers, body: bytes, request_id: str, deadline: float) -> Response:
    """The answer to a batch request.

    Args:
        answers: Makes the items' files.
        body: JSON body.
        request_id: For logs.
        deadline: Time of the event loop at which the answer must be complete; items that are not ready then fail.

    Raises:
        RequestError: The batch as a whole is at fault.
    """
    speech = answers.service
    bodies = await speech.in_thread(parse_batch, body, speech.settings)

    def job(index: int) -> Callable[[], Awaitable[dict[str, Any]]]:
        async def run() -> dict[str, Any]:
            try:
                async with asyncio.timeout_at(deadline) as limit:
                    file = await answers.speak_to_file(bodies[index], f"{request_id}/{index}")
            except TimeoutError as error:
                if limit.expired():
                    raise answers.timed_out() from error
                raise
            return await speech.in_thread(_success, index, file)

        return run

    done = await run_all([job(index) for index in range(len(bodies))], speech.settings.batch_concurrency)
    results = [_failure(index, each) if isinstance(each, VoxrError) else each for index, each in enumerate(done)]
    failed = sum(isinstance(each, VoxrError) for each in done)
    answer = {
        "id": f"speech-batch-{request_id or uuid.uuid4().hex}",
        "object": "audio.speech.batch",
        "results": results,
        "total": len(results),
        "succeeded": len(results) - failed,
        "failed": failed,
    }
    content = await speech.in_thread(lambda: json.dumps(answer, separators=(",", ":")).encode())
    return Response(content, media_type="application/json")


async def synthesize_batch(speech: SpeechService, requests: Sequence[SynthRequest]) -> list[SynthResult | VoxrError]:
    """Results or errors of many requests, in their order.

    Raises:
        TooLarge: There are more than a batch may hold.
    """
    _check_count(len(requests), speech.settings)

    def job(request: SynthRequest) -> Callable[[], Awaitable[SynthResult]]:
        return lambda: speech.render(request)

    return await run_all([job(request) for request in requests], speech.settings.batch_concurrency)


async def run_all(jobs: Sequence[Callable[[], Awaitable[T]]], most: int) -> list[T | VoxrError]:
    """Results or errors of ``jobs`` in their order, at most ``most`` of them at a time."""
    places = asyncio.Semaphore(most)

    async def run(job: Callable[[], Awaitable[T]]) -> T | VoxrError:
        async with places:
            try:
                return await job()
            except VoxrError as error:
                return error
            except Exception:  # noqa: BLE001  (a fault of ours in one item is no reason to lose the others)
                _log.exception("an item of a batch failed")
                return EngineError("internal error")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(job)) for job in jobs]
    return [task.result() for task in tasks]


def _check_count(items: int, settings: Settings) -> None:
    if items > settings.max_batch_items:
        raise TooLarge(
            f"the batch has {items} items; at most {settings.max_batch_items} are accepted: send several", param="items"
        )


def _success(index: int, file: SpokenFile) -> dict[str, Any]:
    summary = file.summary
    return {
        "index": index,
        "status": "success",
        "audio_data": base64.b64encode(file.data).decode(),
        "media_type": file.audio_format.media_type,
        "sample_rate": file.rate_hz,
        "audio_seconds": round(file.seconds, 3),
        "seed": summary.seed,
        "takes": summary.takes,
        "stop_reason": summary.stop_reason,
        "usage": usage(summary),
        "error": None,
    }


def _failure(index: int, error: VoxrError) -> dict[str, Any]:
    return {"index": index, "status": "error", "audio_data": None, "media_type": None} | body_of(error)
