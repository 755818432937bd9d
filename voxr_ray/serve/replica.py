"""The replica deployment: one model and its engine in one actor.

Its methods run on the actor's event loop and never touch the model; the engine's owner thread does. Each call makes a
reply, posts a job and listens; leaving, by cancellation or by closing a generator, frees the slot.

The health check is the watchdog: Serve stops an unhealthy replica *gracefully* and would wait for the streams of a
hung engine, so a hang found here fails them first.

A replica whose engine has stopped ends its own process, a moment later. It would otherwise stay in rotation for three
failed health checks, refuse whatever it is sent, and so look idle: the very replica that balancing by load sends
everything to. It also holds a device that nothing but the end of the process is sure to free.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from voxr_ray.config import Settings
from voxr_ray.engine.async_reply import AsyncReply
from voxr_ray.engine.engine import Engine
from voxr_ray.engine.limits import check_fits
from voxr_ray.engine.model import Padding, SlotModel
from voxr_ray.engine.options import EngineOptions
from voxr_ray.engine.record import StepRecord
from voxr_ray.engine.reply import Reply
from voxr_ray.engine.ticket import EngineSnapshot
from voxr_ray.errors import EngineStopped
from voxr_ray.messages import AudioChunk, Prompt, Recording, Reference, Summary, SynthRequest, SynthResult
from voxr_ray.serve import autoscaling
from voxr_ray.serve.board import ReplicaBoard, describe
from voxr_ray.serve.logs import set_up_logs
from voxr_ray.serve.metrics import EngineMetrics
from voxr_ray.serve.publisher import Publisher
from voxr_ray.serve.resume import Remainder
from voxr_ray.serve.routing.roster import Roster
from voxr_ray.serve.routing.values import CallTag, ReplicaName
from voxr_ray.serve.values import Beat, Delivered, ReplicaInfo

_log = logging.getLogger(__name__)

_GIVEN_UP_S = 1.0
"""Seconds to wait for the thread of an engine that has stopped."""

_LAST_WORDS_S = 0.5
"""Seconds in which callers are told that the engine has stopped, before the process ends."""

_BEATS = 4
"""Words a replica says at least in the time after which a router gives a silent one up."""

_PIECE_SAMPLES = 2**19
"""Samples in one piece of a whole result: 2 MiB, half of what one message holds."""


def engine_options(settings: Settings) -> EngineOptions:
    """The engine's share of the settings."""
    return EngineOptions(
        max_batch=settings.max_batch,
        continuous_capacity=settings.continuous_capacity,
        batch_window_s=settings.batch_window_ms / 1000,
        max_queue=settings.max_queue,
        stream_chunk_patches=settings.stream_chunk_patches,
        first_chunk_patches=settings.first_chunk_patches,
        reference_cache_bytes=settings.reference_cache_bytes,
        pieces_per_cycle=settings.pieces_per_cycle,
    )


def end_process() -> None:
    """End this process at once. Nothing is cleaned up: a thread that hangs in a device call would not let it be."""
    _log.error("the engine has stopped: this replica ends, and Serve starts another")
    logging.shutdown()
    os._exit(1)


class Replica:
    """One engine behind actor methods.

    Args:
        settings: The server's settings.
        model_factory: Loads the model; called once, on the engine's owner thread.
        end: Called a moment after the engine has stopped; ends the process, where it is the replica's own.
    """

    def __init__(
        self, settings: Settings, model_factory: Callable[[], SlotModel], end: Callable[[], None] | None = None
    ) -> None:
        set_up_logs()
        self._settings = settings
        self._end = end
        # One thread: many long texts at once must not take the cores from the engine, nor this actor from its callers.
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="check")
        self._engine = Engine(model_factory, engine_options(settings))
        self._engine.start()
        self._roster = Roster(self._engine)
        self._info = ReplicaInfo(spec=self._engine.spec, notice=getattr(self._engine.model, "notice", None))
        engine, metrics = self._engine, EngineMetrics()
        self._publisher = Publisher(lambda: metrics.publish(engine.snapshot(), engine.record.steps()))
        _log.info("serving %s, %d slots", settings.served_name, settings.max_batch)

    async def info(self) -> ReplicaInfo:
        """Facts of the model."""
        return self._info

    async def synthesize_stream(
        self, request: SynthRequest, delivered: Delivered | None = None, tag: CallTag | None = None
    ) -> AsyncIterator[AudioChunk | Beat]:
        """Render and yield audio while it is made; the last chunk carries the summary.

        Args:
            request: What to render.
            delivered: What its caller has of it from a replica that was lost: set if there was one. That much is
                rendered again, and left out.
            tag: Name of the call among those of all routers, for routing.

        Raises:
            VoxrError: The request was refused, or its render failed.
        """
        remainder = Remainder(delivered or Delivered())
        with self._while_running():
            async with AsyncReply[Summary]() as reply:
                with self._inside(request, reply, tag, stream=True, moved=delivered is not None):
                    async for chunk in reply.pulses(self._beat_s):
                        if chunk is None:
                            yield Beat()
                        elif (rest := remainder.of(chunk)) is not None:
                            yield rest

    async def synthesize_pieces(
        self, request: SynthRequest, delivered: Delivered | None = None, tag: CallTag | None = None
    ) -> AsyncIterator[AudioChunk | Beat]:
        """Render to the end, bad takes replaced, then yield the result in pieces that fit a message.

        Args:
            request: What to render.
            delivered: As for :meth:`synthesize_stream`.
            tag: Name of the call among those of all routers, for routing.

        Raises:
            VoxrError: The request was refused, or its render failed.
        """
        remainder = Remainder(delivered or Delivered())
        with self._while_running():
            async with AsyncReply[SynthResult]() as reply:
                with self._inside(request, reply, tag, stream=False, moved=delivered is not None):
                    async for _ in reply.pulses(self._beat_s):
                        yield Beat()
                result = await reply.result()
        starts = range(0, max(1, len(result.samples)), _PIECE_SAMPLES)
        for index, start in enumerate(starts):
            piece = AudioChunk(
                samples=result.samples[start : start + _PIECE_SAMPLES],
                index=index,
                seed=result.summary.seed,
                sample_rate_hz=result.summary.sample_rate_hz,
                summary=result.summary if index == len(starts) - 1 else None,
            )
            if (rest := remainder.of(piece)) is not None:
                yield rest

    async def check_fit(self, requests: Sequence[SynthRequest]) -> None:
        """Find out whether requests would be accepted by an empty engine.

        Raises:
            RequestError: The first that would not.
        """

        def check() -> None:
            for request in requests:
                check_fits(request, self._engine.model.plan(request), self._engine.capacity)

        await asyncio.get_running_loop().run_in_executor(self._checker, check)

    async def encode_reference(self, reference: Reference) -> Reference:
        """Encode a voice: the same reference with features instead of its clip."""
        return Reference(digest=reference.digest, features=await self._features(reference, Padding.RIGHT))

    async def encode_prompt(self, prompt: Prompt) -> Prompt:
        """Encode a clip to continue from: the same prompt with features instead of its clip."""
        return Prompt(digest=prompt.digest, features=await self._features(prompt, Padding.LEFT), text=prompt.text)

    async def withdraw(self, replica: ReplicaName, tags: Sequence[CallTag]) -> list[bool]:
        """Give back renders that still wait for a slot, so that another replica can have them.

        Args:
            replica: This one: the router sends the call there by it.
            tags: The calls.

        Returns:
            For each whether it was given back. Its call then ends with ``Withdrawn``; any other goes on.
        """
        return self._roster.withdraw(tags)

    async def record_routing_stats(self) -> dict[str, Any]:
        """What routers should know; Serve asks for it and sends it to all of them."""
        return self._roster.report().to_stats()

    async def engine_record(self) -> EngineSnapshot:
        """What the engine did so far and what it holds now."""
        return self._engine.snapshot()

    async def engine_steps(self) -> tuple[StepRecord, ...]:
        """The latest steps, oldest first."""
        return self._engine.record.steps()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the autoscaler cannot count for itself; Serve asks every few seconds."""
        snapshot = self._engine.snapshot()
        batch = snapshot.record.batch
        return autoscaling.stats(renders=snapshot.load.renders, held=batch.held, sampler=batch.sampler)

    async def board(self) -> ReplicaBoard:
        """What the board shows of this replica."""
        return describe(self._engine)

    async def check_health(self) -> None:
        """Fail if the owner thread ended, or made no progress for too long while it had work.

        Raises:
            EngineStopped: This replica has to be replaced. Its callers have been told.
        """
        with self._while_running():
            try:
                self._engine.check_health(self._settings.stall_timeout_s)
            except EngineStopped as error:
                self._engine.fail_all(error.message)
                raise

    async def _features(self, recording: Recording, padding: Padding) -> np.ndarray:
        with self._while_running():
            async with AsyncReply[np.ndarray]() as reply:
                self._engine.encode(recording, padding, reply)
                return await reply.result()

    @property
    def _beat_s(self) -> float:
        return self._settings.silence_timeout_s / _BEATS

    @contextmanager
    def _inside(
        self, request: SynthRequest, reply: Reply[Any], tag: CallTag | None, *, stream: bool, moved: bool
    ) -> Iterator[None]:
        """A render in the engine and on the roster, while its reply is listened to."""
        tag = self._roster.arrived(tag)
        ticket = self._engine.submit(request, reply, stream=stream, moved=moved)
        with self._roster.inside(tag, request, ticket):
            yield

    @contextmanager
    def _while_running(self) -> Iterator[None]:
        """Work of the engine's. If the engine has stopped by the end of it, this replica ends soon."""
        try:
            yield
        finally:
            if not self._engine.running and self._end is not None:
                end, self._end = self._end, None
                asyncio.get_running_loop().call_later(_LAST_WORDS_S, end)

    def __del__(self) -> None:
        # Serve calls this once the last call has ended, or when the time for a graceful end is over.
        self.close()

    def close(self) -> None:
        """End the engine, once those inside have finished."""
        self._end = None  # being removed already
        if engine := getattr(self, "_engine", None):
            # An engine that was given up has nobody left to drain, and its thread may never come back: a replacement
            # waits for this actor's GPU.
            engine.close(timeout_s=self._settings.drain_s if engine.running else _GIVEN_UP_S)
        if checker := getattr(self, "_checker", None):
            checker.shutdown(wait=False, cancel_futures=True)
        if publisher := getattr(self, "_publisher", None):
            publisher.close()
