"""Which replica is best for a request: pure functions of what is known of the replicas.

The engine's sampler rule decides what a place is worth: a replica that runs the request's sampler seats it at the next
step, an idle one at once, and any other holds it until its batch has drained, and from then on holds everybody who
comes after it, too. So, in this order:

1. a replica that runs the sampler, has a free slot and nobody waiting: the fullest, so that the others drain and
   become free for other samplers;
2. an idle replica, unless as many samplers in use run nowhere as replicas are idle: those would be held if they came
   back, and the request has another place;
3. where the wait is shortest, in durations of a render, with a surcharge for what it does to others.

At equal worth, one that has the request's voice cached; then the highest *rendezvous* hash of sampler and replica, so
that routers that never talk agree. Waiting for the cached replica, or opening another one for it, would cost more than
the encode it saves.

Spreading a sampler evenly over all idle replicas was rejected: steps of narrow batches are faster, but no replica ever
drains, and the next sampler is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from voxr_ray.serve.routing.values import SamplerKey, Wish


@dataclass(frozen=True, slots=True)
class View:
    """A replica as a router knows it. Made by :meth:`of`, which derives the second half.

    Attributes:
        name: Its unique id.
        width: Slots of its engine.
        running: Sampler of the rows; ``None`` without rows.
        rows: Occupied slots.
        queue: Waiting requests by sampler, in the order of their first one.
        voices: Short keys of cached recordings.
        waiting: Requests without a slot.
        idle: Whether nothing runs and nothing waits.
        full: Whether its engine would refuse.
        open: Whether a request with the running sampler would be seated at the next step.
    """

    name: str
    width: int
    running: SamplerKey | None
    rows: int
    queue: tuple[tuple[SamplerKey, int], ...]
    voices: frozenset[str]
    waiting: int
    idle: bool
    full: bool
    open: bool

    @classmethod
    def of(
        cls,
        name: str,
        *,
        width: int,
        room: int,
        running: SamplerKey | None = None,
        rows: int = 0,
        queue: tuple[tuple[SamplerKey, int], ...] = (),
        voices: frozenset[str] = frozenset(),
        unseen: int = 0,
    ) -> View:
        """A view, with what follows from it.

        Args:
            name: Its unique id.
            width: Slots of its engine.
            room: Requests its engine accepts, those in slots included.
            running: Sampler of the rows.
            rows: Occupied slots.
            queue: Waiting requests by sampler.
            voices: Short keys of cached recordings.
            unseen: Requests that other routers have probably sent here since its latest report. They count against
                joining, so that routers do not all fill up the same replica; nothing else is decided on a guess.
        """
        waiting = sum(count for _, count in queue)
        return cls(
            name=name,
            width=width,
            running=running,
            rows=rows,
            queue=queue,
            voices=voices,
            waiting=waiting,
            idle=not rows and not queue,
            full=rows + waiting >= room,
            open=rows > 0 and rows + unseen < width and not queue and rows + waiting < room,
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """What things are worth, in durations of a render.

    Attributes:
        drain: Wait until a running batch has drained.
        stop: Being the first that is held at a replica: from then on nobody joins the batch there. Shared among the
            replicas that run the same sampler, because its requests can go to the others.
        group: Adding a sampler to a queue: one more batch for everybody behind.
        lend: Taking an idle replica that is kept for samplers in use that run nowhere.
    """

    drain: float = 0.75
    stop: float = 1.0
    group: float = 0.5
    lend: float = 0.5


@dataclass(frozen=True, slots=True)
class Fleet:
    """All replicas, as a request with one sampler finds them.

    Attributes:
        views: The replicas.
        running: How many replicas run a sampler.
        reserved: Whether idle replicas are kept for samplers in use that run nowhere.
    """

    views: Sequence[View]
    running: Counter[SamplerKey | None]
    reserved: bool

    @classmethod
    def of(cls, views: Sequence[View], active: Iterable[SamplerKey], sampler: SamplerKey) -> Fleet:
        """Look at the replicas for a request.

        Args:
            views: The replicas.
            active: Samplers in use: those of requests not long ago.
            sampler: What the request needs.
        """
        running = Counter([view.running for view in views])
        if sampler not in running:
            # Without a replica of its own a sampler is entitled to one.
            return cls(views, running, reserved=False)
        used = {sampler, *active}
        if len(used) > len(views):
            # They have to share anyway: an idle replica helps whoever comes first.
            return cls(views, running, reserved=False)
        idle = sum([view.idle for view in views])
        nowhere = sum([each not in running for each in used])
        return cls(views, running, reserved=idle <= nowhere)

    def serves(self, view: View, sampler: SamplerKey) -> bool:
        """Whether a replica would seat a request at once, and nobody else's place is taken by that."""
        return (view.open and view.running == sampler) or (view.idle and not self.reserved and not view.full)

    def wait(self, view: View, sampler: SamplerKey, weights: Weights) -> float:
        """Durations of a render until a replica has a slot for a request, and what that costs others."""
        if view.idle:
            return weights.lend if self.reserved else 0.0
        width, queue = view.width, view.queue
        if view.running == sampler and (not queue or (len(queue) == 1 and queue[0][0] == sampler)):
            return max(0, view.rows + view.waiting - width + 1) / width
        wait = weights.drain
        if queue and queue[0][0] == view.running:
            # They take slots as these get free; those behind them are held.
            wait += queue[0][1] / width
            queue = queue[1:]
        if not queue:
            return wait + weights.stop / max(1, self.running[view.running])
        for each, count in queue:
            if each == sampler:
                return wait + count // width
            wait += -(-count // width)
        return wait + weights.group


def best(fleet: Fleet, wish: Wish, weights: Weights, avoid: Container[str] = ()) -> View | None:
    """The best replica for a request; ``None`` without replicas.

    Args:
        fleet: The replicas.
        wish: What the request needs.
        weights: What things are worth.
        avoid: Names of replicas that are taken only if there is no other.
    """
    sampler = wish.sampler
    views = [view for view in fleet.views if view.name not in avoid] if avoid else fleet.views
    views = views or fleet.views
    joins = [view for view in views if view.open and view.running == sampler]
    if joins:
        cached = _cached(joins, wish)
        most = max([view.rows for view in cached])
        return _highest([view for view in cached if view.rows == most], sampler)
    if not fleet.reserved and (idle := [view for view in views if view.idle and not view.full]):
        return _highest(_cached(idle, wish), sampler)
    if room := [view for view in views if not view.full]:
        waits = [fleet.wait(view, sampler, weights) for view in room]
        least = min(waits)
        return _highest(_cached([view for view, wait in zip(room, waits, strict=True) if wait == least], wish), sampler)
    if not views:
        return None
    fewest = min([view.waiting for view in views])
    return _highest([view for view in views if view.waiting == fewest], sampler)


def _cached(views: Sequence[View], wish: Wish) -> Sequence[View]:
    """Those of equally good replicas that have a voice of the request; all if none has."""
    if not wish.voices or len(views) == 1:
        return views
    return [view for view in views if not wish.voices.isdisjoint(view.voices)] or views


def _highest(views: Sequence[View], sampler: SamplerKey) -> View:
    return views[0] if len(views) == 1 else max(views, key=lambda view: rendezvous(sampler, view.name))


def rendezvous(sampler: SamplerKey, name: str) -> bytes:
    """A hash that gives every sampler its own order of the replicas, the same in every process."""
    text = f"{sampler.cfg_value!r} {sampler.inference_timesteps} {name}"
    return blake2b(text.encode(), digest_size=8).digest()
