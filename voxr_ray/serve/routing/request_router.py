"""Serve's request router for the replicas: translates between Ray and the desk, and decides nothing.

Serve pickles this module's class by value, so nothing that must be the same object elsewhere may live in it. Serve
makes one for every handle and calls it on one event loop.

Requests are matched first come, first served (``FIFOMixin``): Serve's other way goes by an id that all calls made for
one HTTP request share, and never finishes the second of two that are being routed at a time. A call then gets the
replica chosen for it because nothing here waits: the length of the chosen replica's queue is always known.
"""

from __future__ import annotations

import random
import time
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from voxr_ray.serve.routing.book import Book
from voxr_ray.serve.routing.desk import Call, Desk
from voxr_ray.serve.routing.values import ReplicaName, Report

_SUSPICION_S = 10.0
"""Seconds for which a replica that could not be reached is left out."""


class SamplerRouter(FIFOMixin, RequestRouter):
    """Chooses replicas by sampler; see :mod:`voxr_ray.serve.routing.policy`.

    Calls that are no renders (facts, checks, encodes) go to the less busy of two, as Serve does it by default, or to
    the replica that their first argument names.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin; Serve calls this once.

        Args:
            **kwargs: Those of :class:`~voxr_ray.serve.routing.book.Book`, but for its clock.
        """
        self._desk = Desk(Book(clock=time.monotonic, **kwargs))
        self._by_name: dict[str, RunningReplica] = {}
        self._stats: dict[str, dict[str, Any]] = {}
        self._suspects: dict[str, float] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank the replicas: the chosen one, then all in case Serve cannot send the request there."""
        chosen = self._choose(candidate_replicas, pending_request)
        for replica in chosen:
            # An entry grows stale after seconds without a call. Asking the replica for its length would cost a trip,
            # and let other requests be routed meanwhile.
            if self.replica_queue_len_cache.get(replica.replica_id) is None:
                self.replica_queue_len_cache.update(replica.replica_id, 0)
        return [chosen, candidate_replicas]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Note where a request really went."""
        if call := _find(pending_request, Call):
            self._desk.sent(call, replica_id.unique_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take in the replicas there are and their reports."""
        super().update_replicas(replicas)
        self._by_name = {replica.replica_id.unique_id: replica for replica in replicas}
        news: list[tuple[str, Report]] = []
        before, self._stats = self._stats, {}
        for name, replica in self._by_name.items():
            stats = self._stats[name] = replica.routing_stats
            if stats and stats != before.get(name):
                report = Report.from_stats(stats)
                if report is not None:
                    news.append((name, report))
                    self._suspects.pop(name, None)
        now_s = time.monotonic()
        self._suspects = {name: until_s for name, until_s in self._suspects.items() if until_s > now_s}
        sound = [name for name in self._by_name if name not in self._suspects]
        self._desk.update(sound or self._by_name, news)

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """Leave out a replica that could not be reached, until it says something new or some seconds have passed.

        A killed replica looks like this when it is called by value, and the controller goes on listing it until its
        health checks fail.
        """
        super().on_replica_actor_unavailable(replica_id)
        self._suspects[replica_id.unique_id] = time.monotonic() + _SUSPICION_S
        self._desk.book.drop_replica(replica_id.unique_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica before the controller says so."""
        super().on_replica_actor_died(replica_id)
        self._by_name.pop(replica_id.unique_id, None)
        self._desk.book.drop_replica(replica_id.unique_id)

    def _choose(self, candidates: list[RunningReplica], pending: PendingRequest | None) -> list[RunningReplica]:
        if name := _find(pending, ReplicaName):
            return [replica for replica in [self._by_name.get(name)] if replica is not None]
        if call := _find(pending, Call):
            name = self._desk.place(call)
            return [replica for replica in [self._by_name.get(name or "")] if replica is not None]
        return random.sample(candidates, min(2, len(candidates)))


def _find(pending: PendingRequest | None, kind: type[Any]) -> Any:
    """The argument of a request that is of a kind."""
    return None if pending is None else next((each for each in pending.args if isinstance(each, kind)), None)
