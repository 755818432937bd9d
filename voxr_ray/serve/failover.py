"""Failover: work that a replica was lost with is done by another one, and its caller does not notice.

A call fails in one of three ways. The request is at fault, or its row: that would happen anywhere and passes
through. All replicas are full: that passes through too, unless the work had been accepted before. Or the replica is at
fault (:attr:`~voxr_ray.errors.VoxrError.elsewhere`), or says nothing: then the call is made again, and Serve chooses
another replica for it. An answer that had begun goes on where it stopped (:mod:`voxr_ray.serve.resume`).

What bounds it:

- after more than ``losses`` losses in a row, without a new sample in between, the caller gets the last error: the
  request itself may be what kills replicas. In all it is moved at most :data:`_MOVES_PER_LOSS` times as often;
- after ``patience_s`` without a word from any replica it gets :class:`~voxr_ray.errors.Unavailable`;
- the deadline of its caller, who cancels.

Serve sends a request again by itself as long as no replica has accepted it, so what arrives here was accepted. Runs on
a router's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

from voxr_ray.config import Settings
from voxr_ray.errors import Overloaded, ReplicaLost, Unavailable, VoxrError
from voxr_ray.messages import SEED_MODULUS, AudioChunk, SynthRequest
from voxr_ray.serve.failover_record import FailoverRecord
from voxr_ray.serve.resume import Progress
from voxr_ray.serve.transport import Replicas
from voxr_ray.serve.values import Beat, Delivered

_log = logging.getLogger(__name__)

_MOVES_PER_LOSS = 5

_WAITS_S = (0.0, 0.25, 1.0, 2.0)
"""Seconds before the first, second, ... attempt in a row: healthy replicas are there at once, and one whose engine has
stopped takes a moment to be gone."""

_NO_ROOM_S = 1.0
_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPolicy:
    """How often and how long.

    Attributes:
        losses: Losses in a row that a request survives; 0 turns failover off.
        silence_s: A replica that says nothing for so long is given up.
        patience_s: Longest time without a word from any replica.
    """

    losses: int
    silence_s: float
    patience_s: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The policy that settings ask for."""
        return cls(
            losses=settings.max_failovers,
            silence_s=settings.silence_timeout_s,
            patience_s=settings.request_timeout_s,
        )


class Failover:
    """Calls to replicas that survive the loss of some.

    Args:
        replicas: Makes single calls.
        policy: How often and how long.
        record: Is told of every loss.
    """

    def __init__(self, replicas: Replicas, policy: FailoverPolicy, record: FailoverRecord) -> None:
        self._replicas = replicas
        self._policy = policy
        self._record = record

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method without side effects, on another replica if one is lost.

        Raises:
            VoxrError: What the method raised, or why no replica could do it.
        """
        attempts = _Attempts(self._policy, self._record, method)
        while True:
            try:
                return await self._replicas.call(method, *args)
            except VoxrError as error:
                await attempts.after(error, Progress())

    async def render(self, method: str, request: SynthRequest) -> AsyncGenerator[AudioChunk, None]:
        """Pass the chunks of an answer on, each sample once, to the one that carries the summary.

        Close the iterator (``contextlib.aclosing``) when leaving early.

        Args:
            method: Name of a generator method that takes a request and what was delivered of its answer.
            request: What to render. An unset seed is drawn here, for an answer can only go on with its own.

        Raises:
            VoxrError: The request was refused, its render failed, or no replica could go on with it.
        """
        if request.seed is None:
            request = request.model_copy(update={"seed": secrets.randbelow(SEED_MODULUS)})
        progress = Progress()
        attempts = _Attempts(self._policy, self._record, request.request_id or method)
        while not progress.complete:
            delivered = progress.delivered if attempts.moved else None
            try:
                async with aclosing(self._attempt(method, request, delivered, attempts)) as chunks:
                    async for chunk in chunks:
                        yield progress.follow(chunk)
                if not progress.complete:
                    raise ReplicaLost("the replica's answer ended early", retry_after_s=_RETRY_AFTER_S)
            except VoxrError as error:
                if not progress.complete:
                    await attempts.after(error, progress)
        if attempts.moved:
            self._record.recovered()

    async def _attempt(
        self, method: str, request: SynthRequest, delivered: Delivered | None, attempts: _Attempts
    ) -> AsyncGenerator[AudioChunk, None]:
        """The chunks of one replica's answer; one that says nothing for too long counts as lost."""
        async with aclosing(self._replicas.stream(method, request, delivered)) as items:
            spoken = False
            while True:
                try:
                    # Timed item by item: a time-out may not span a yield, for it would fire into the consumer.
                    async with asyncio.timeout(self._policy.silence_s) as limit:
                        item = await anext(items, None)
                except TimeoutError:
                    if not limit.expired():
                        raise
                    if not spoken:
                        raise _Unanswered("none has answered yet") from None
                    raise ReplicaLost(
                        f"the replica said nothing for {self._policy.silence_s:g} s", retry_after_s=_RETRY_AFTER_S
                    ) from None
                if item is None:
                    return
                spoken = True
                attempts.heard()
                if not isinstance(item, Beat):
                    yield item


class _Unanswered(ReplicaLost):
    """Nobody took the call, or whoever did never said a word. It may still wait for a replica to start."""


class _Attempts:
    """Counts the attempts at one piece of work and says whether there is another.

    Args:
        policy: How often and how long.
        record: Is told of every loss.
        name: What it is called in logs.
    """

    def __init__(self, policy: FailoverPolicy, record: FailoverRecord, name: str) -> None:
        self._policy = policy
        self._record = record
        self._name = name
        self._clock = asyncio.get_running_loop().time
        self._heard_s = self._clock()
        self._samples = 0
        self._in_a_row = 0
        self._in_all = 0

    @property
    def moved(self) -> bool:
        """Whether a replica had the work and was lost."""
        return self._in_all > 0

    def heard(self) -> None:
        """A replica has said something."""
        self._heard_s = self._clock()

    async def after(self, error: VoxrError, progress: Progress) -> None:
        """Return when it is time for another attempt.

        Raises:
            VoxrError: There is none: ``error``, or what sums it up.
        """
        wait_s = self._wait_s(error, progress.samples)
        if self._clock() + wait_s > self._heard_s + self._policy.patience_s:
            self._record.given_up()
            raise Unavailable(
                f"no replica took the request within {self._policy.patience_s:g} s: {error.message}",
                retry_after_s=_RETRY_AFTER_S,
            ) from error
        await asyncio.sleep(wait_s)

    def _wait_s(self, error: VoxrError, samples: int) -> float:
        if isinstance(error, _Unanswered):
            return 0.0
        if isinstance(error, Overloaded) and self.moved:
            return min(_NO_ROOM_S, error.retry_after_s or _NO_ROOM_S)
        if not error.elsewhere or not self._policy.losses:
            raise error
        self._record.lost(error)
        self._in_a_row = 1 if samples > self._samples else self._in_a_row + 1
        self._in_all += 1
        self._samples = samples
        if self._in_a_row > self._policy.losses or self._in_all > self._policy.losses * _MOVES_PER_LOSS:
            self._record.given_up()
            _log.error("%s is given up after %d lost replicas: %s", self._name, self._in_all, error.message)
            raise error
        self._record.moved(resumed=samples > 0)
        _log.warning("%s goes on elsewhere after %d samples: %s", self._name, samples, error.message)
        return _WAITS_S[min(self._in_a_row, len(_WAITS_S)) - 1]
