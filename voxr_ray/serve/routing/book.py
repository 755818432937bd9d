"""What one router knows of its replicas and of its calls there, and what it decides on it.

Every router decides alone. It counts its own calls from the moment it places them, hears of the others' through the
replicas' reports, and sends waiting calls elsewhere when that serves them at once: what two routers decided without
knowing of each other is mended so within a report.

Runs on one event loop: that of Serve's router behind a handle.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from voxr_ray.serve.routing.policy import Fleet, View, Weights, best
from voxr_ray.serve.routing.shadow import Shadow
from voxr_ray.serve.routing.values import CallTag, Report, SamplerKey, Wish

_MOST_SAMPLERS = 1024
"""Samplers remembered as in use. Clients choose them freely, so the list is bounded."""


@dataclass(frozen=True, slots=True)
class Move:
    """A waiting call that another replica would seat at once.

    Attributes:
        tag: The call.
        source: Where it waits.
        target: Where it will go; a slot there is kept for it until it comes or stays.
    """

    tag: CallTag
    source: str
    target: str


@dataclass(slots=True)
class _Placed:
    wish: Wish
    at: str
    """The replica it was sent to."""
    going: str | None = None
    """The replica it is to move to."""
    settled: bool = False
    """Whether it has a slot for certain."""


class Book:
    """See the module.

    Args:
        width: Slots of a replica.
        room: Requests a replica accepts.
        keep_s: Seconds a sampler counts as in use after its latest request.
        clock: Monotonic seconds.
        weights: What things are worth.
    """

    def __init__(
        self, *, width: int, room: int, keep_s: float, clock: Callable[[], float], weights: Weights | None = None
    ) -> None:
        self._width = width
        self._room = room
        self._keep_s = keep_s
        self._clock = clock
        self._weights = weights or Weights()
        self._shadows: dict[str, Shadow] = {}
        self._calls: dict[CallTag, _Placed] = {}
        self._own: set[str] = set()
        self._seen_s: dict[SamplerKey, float] = {}
        self._peers_s: dict[str, float] = {}

    @property
    def calls(self) -> int:
        """Calls that are placed and not closed."""
        return len(self._calls)

    def views(self) -> list[View]:
        """The replicas as they are known now."""
        return [shadow.view for shadow in self._shadows.values()]

    def set_replicas(self, names: Iterable[str]) -> None:
        """Replace the list of replicas. Calls at one that is gone stay booked until they are closed."""
        known = self._shadows
        self._shadows = {name: known.get(name) or Shadow(name, self._width, self._room) for name in names}

    def drop_replica(self, name: str) -> None:
        """Forget a replica that has died."""
        self._shadows.pop(name, None)

    def report(self, name: str, report: Report) -> None:
        """Take in what a replica says of itself."""
        shadow = self._shadows.get(name)
        if shadow is None:
            return
        now_s = self._clock()
        for router in {each.router for each in report.seats} | {each.tag.router for each in report.queue}:
            if router and router not in self._own:
                self._peers_s[router] = now_s
        for router in [each for each, at_s in self._peers_s.items() if at_s < now_s - self._keep_s]:
            del self._peers_s[router]
        shadow.report(report, self._own, len(self._peers_s))
        for sampler in {each.sampler for each in report.seats} | {each.sampler for each in report.queue}:
            self._use(sampler)

    def place(self, tag: CallTag, wish: Wish, avoid: Container[str] = ()) -> tuple[str | None, bool]:
        """Choose a replica for a call and count it there.

        Args:
            tag: The call. If it moves, it gets the slot that was kept for it.
            wish: What it needs.
            avoid: Replicas that have refused it.

        Returns:
            The replica's name, ``None`` if there is no replica; and whether it is worth asking another one if this
            one refuses. Beside other routers it always is: what is known of their calls is old.
        """
        self._own.add(tag.router)
        self._use(wish.sampler)
        before = self._calls.pop(tag, None)
        if before is not None:
            self._forget(tag, before)
        if before is not None and before.going in self._shadows and before.going not in avoid:
            name: str | None = before.going
        else:
            choice = best(self._fleet(wish.sampler), wish, self._weights, avoid)
            name = None if choice is None else choice.name
        if name is None:
            return None, False
        another = any(
            each != name and each not in avoid and (self._peers_s or not shadow.view.full)
            for each, shadow in self._shadows.items()
        )
        self._calls[tag] = _Placed(wish, name)
        self._shadows[name].add(tag, wish.sampler)
        return name, another

    def placed_at(self, tag: CallTag, name: str) -> None:
        """Note where a call was sent, if that is not where it was meant to go."""
        call = self._calls.get(tag)
        if call is None or call.at == name:
            return
        self._forget(tag, call)
        self._calls[tag] = _Placed(call.wish, name)
        if name in self._shadows:
            self._shadows[name].add(tag, call.wish.sampler)

    def seated(self, tag: CallTag) -> None:
        """Note that a call has its slot: there is audio, or the replica did not give it back."""
        call = self._calls.get(tag)
        if call is None:
            return
        self.stays(tag)
        call.settled = True
        if call.at in self._shadows:
            self._shadows[call.at].seated(tag)

    def stays(self, tag: CallTag) -> None:
        """Note that a call could not be asked back: it is where it was, and nothing is kept for it elsewhere."""
        call = self._calls.get(tag)
        if call is None:
            return
        if call.going in self._shadows:
            self._shadows[call.going].remove(tag)
        call.going = None

    def close(self, tag: CallTag) -> str | None:
        """Forget a call that has ended.

        Returns:
            The replica it was at.
        """
        call = self._calls.pop(tag, None)
        if call is None:
            return None
        self._forget(tag, call)
        return call.at

    def moves(self, names: Iterable[str] | None = None) -> list[Move]:
        """Find waiting calls of this router that another replica would seat at once, oldest first.

        Args:
            names: Replicas that may have got a free slot; all, if it is not given.
        """
        waiting = [shadow for shadow in self._shadows.values() if shadow.view.queue]
        if not waiting:
            return []
        targets = self._shadows.keys() if names is None else [name for name in names if name in self._shadows]
        found: list[Move] = []
        for name in targets:
            target = self._shadows[name]
            while not target.view.queue and target.view.rows < target.view.width:
                move = self._move_to(target, waiting)
                if move is None:
                    break
                found.append(move)
        return found

    def _move_to(self, target: Shadow, waiting: list[Shadow]) -> Move | None:
        """The oldest call that waits elsewhere and would be seated here; it is counted here from now on."""
        view = target.view
        fleets: dict[SamplerKey, Fleet] = {}
        for tag, source in self._candidates(view, waiting):
            call = self._calls[tag]
            sampler = call.wish.sampler
            fleet = fleets[sampler] = fleets.get(sampler) or self._fleet(sampler)
            # Behind a wait that is long enough a replica is lent, for a newcomer as for one who waits already.
            lent = view.idle and fleet.wait(source.view, sampler, self._weights) > self._weights.lend
            if fleet.serves(view, sampler) or lent:
                call.going = target.name
                target.add(tag, sampler)
                return Move(tag, source.name, target.name)
        return None

    def _candidates(self, target: View, waiting: list[Shadow]) -> list[tuple[CallTag, Shadow]]:
        """Calls to try, oldest first. Of one sampler at one replica the oldest stands for all."""
        oldest: list[tuple[CallTag, Shadow]] = []
        for shadow in waiting:
            if shadow.name == target.name:
                continue
            samplers: set[SamplerKey] = set()
            for waiter in shadow.waiting():
                call = self._calls.get(waiter.tag)
                if call is None or call.going is not None or call.settled or waiter.sampler in samplers:
                    continue
                if target.running in (None, waiter.sampler):
                    samplers.add(waiter.sampler)
                    oldest.append((waiter.tag, shadow))
        return sorted(oldest, key=lambda each: each[0])

    def _fleet(self, sampler: SamplerKey) -> Fleet:
        since_s = self._clock() - self._keep_s
        return Fleet.of(self.views(), [each for each, at_s in self._seen_s.items() if at_s >= since_s], sampler)

    def _use(self, sampler: SamplerKey) -> None:
        now_s = self._clock()
        self._seen_s.pop(sampler, None)
        self._seen_s[sampler] = now_s
        oldest = next(iter(self._seen_s))  # they are in the order of their latest use
        while self._seen_s[oldest] < now_s - self._keep_s or len(self._seen_s) > _MOST_SAMPLERS:
            del self._seen_s[oldest]
            oldest = next(iter(self._seen_s))

    def _forget(self, tag: CallTag, call: _Placed) -> None:
        for name in (call.at, call.going):
            if name is not None and name in self._shadows:
                self._shadows[name].remove(tag)
