"""A fleet of replicas and routers in simulated time: what a routing policy does to a trace of requests.

Replicas are fakes around the engine's own waiting list, so the sampler rule is the real one; a render keeps its slot
for a duration that the trace names. Routers are the product's (:class:`voxr_ray.serve.routing.book.Book`) or Serve's
default, the shorter queue of two random replicas. Messages take time: calls, withdrawals and reports each their own.
Everything is counted on the simulated clock, so results do not depend on the machine.
"""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.traces import Arrival
from voxr_ray.engine.waiting import WaitingList
from voxr_ray.serve.routing.book import Book, Move
from voxr_ray.serve.routing.policy import Weights
from voxr_ray.serve.routing.values import MOST_REFUSALS, CallTag, Report, SamplerKey, Seats, Waiter, Wish

CALL_S = 0.002
"""A call on its way to a replica, or an answer on its way back."""
FIRST_AUDIO_S = 0.1
"""From taking a slot to the first audio."""
ENCODE_S = 0.3
"""A voice that is not cached where it is spoken with."""
CACHED_VOICES = 64


@dataclass
class Job:
    """A request on its way. Has what the engine's waiting list asks of a job."""

    arrival: Arrival
    tag: CallTag
    router: int
    at: str = ""
    tries: int = 0
    avoid: set[str] = field(default_factory=set)
    another: bool = False
    held: bool = False
    seated_s: float | None = None
    sought_s: float = 0.0
    gone: bool = False

    @property
    def sampler(self) -> SamplerKey:
        """What it needs."""
        return self.arrival.sampler

    @property
    def wish(self) -> Wish:
        """What it needs, for a book."""
        return Wish(self.sampler, frozenset({self.arrival.voice}) if self.arrival.voice else frozenset())


class FakeReplica:
    """One engine: slots, the engine's waiting list, a cache of voices."""

    def __init__(self, name: str, width: int, max_queue: int) -> None:
        self.name = name
        self.width = width
        self.room = width + max_queue
        self.rows: dict[CallTag, Job] = {}
        self.waiting: Any = WaitingList()
        self.running: SamplerKey | None = None
        self.latest: dict[str, int] = {}
        self.voices: OrderedDict[str, None] = OrderedDict()
        self.queued: dict[CallTag, Job] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.rows and not self.queued

    def accept(self, job: Job) -> bool:
        """Queue a job, unless the engine is full. A job that is then held is marked so."""
        router, number = job.tag.router, job.tag.number
        self.latest[router] = max(number, self.latest.get(router, -1))
        if len(self.rows) + len(self.queued) >= self.room:
            return False
        self.waiting.add(job)
        self.queued[job.tag] = job
        return True

    def fill(self) -> list[Job]:
        """Give free slots to waiting jobs, as the engine does at the start of a cycle."""
        if self.rows and self.running is not None:
            jobs = self.waiting.take_joiners(self.running, self.width - len(self.rows))
        else:
            jobs = self.waiting.take_openers(self.width)
        for job in jobs:
            self.running = job.sampler
            self.rows[job.tag] = job
            del self.queued[job.tag]
        return list(jobs)

    def withdraw(self, job: Job) -> bool:
        """Take a waiting job back."""
        if job.tag not in self.queued:
            return False
        job.gone = True
        self.waiting.take_gone()
        job.gone = False
        del self.queued[job.tag]
        return True

    def encode(self, voice: str) -> bool:
        """Look a voice up and keep it; whether it had to be encoded."""
        if not voice:
            return False
        missed = voice not in self.voices
        self.voices[voice] = None
        self.voices.move_to_end(voice)
        if len(self.voices) > CACHED_VOICES:
            self.voices.popitem(last=False)
        return missed

    def report(self) -> Report:
        """What it would tell routers now."""
        seats = Counter((job.tag.router, job.sampler) for job in self.rows.values())
        return Report(
            seats=tuple(Seats(router, sampler, count) for (router, sampler), count in seats.items()),
            queue=tuple(Waiter(tag, job.sampler) for tag, job in self.queued.items()),
            latest=dict(self.latest),
            voices=frozenset(self.voices),
            held=self.waiting.held(self.running),
        )


@dataclass(frozen=True)
class Setup:
    """A fleet.

    Attributes:
        replicas: How many.
        routers: How many, each of which decides alone.
        policy: ``sampler`` or ``power_of_two``.
        width: Slots of a replica.
        max_queue: Places behind them.
        report_s: Time between two reports of a replica; each is that old again when it arrives, at most.
        keep_s: Seconds a sampler stays in use.
    """

    replicas: int
    policy: str = "sampler"
    routers: int = 1
    width: int = 8
    max_queue: int = 32
    report_s: float = 0.25
    keep_s: float = 10.0
    weights: Weights = field(default_factory=Weights)


@dataclass(frozen=True)
class Outcome:
    """What happened to the requests that came after the warm-up.

    Attributes:
        requests: How many.
        held: Those that another sampler's batch held up.
        refused: Those that found no room (503).
        refused_beside_room: Those of them for which another replica had room.
        p50_wait_s: Median wait for a slot, transport included.
        p95_wait_s: 95th percentile.
        max_wait_s: Longest.
        overtaken: Those that were seated after a later request of the same sampler.
        utilisation: Share of the slots' time that was used.
        idle_waiting: Share of the replicas' time that one idled while a request waited at another.
        longest_idle_waiting_s: Longest such time without a break.
        encodes: Voices encoded per request with a voice.
        moved: Requests that were withdrawn and sent elsewhere.
        decision_us: Mean processor time of a decision.
    """

    requests: int
    held: int
    refused: int
    refused_beside_room: int
    p50_wait_s: float
    p95_wait_s: float
    max_wait_s: float
    overtaken: int
    utilisation: float
    idle_waiting: float
    longest_idle_waiting_s: float
    encodes: float
    moved: int
    decision_us: float

    @property
    def held_share(self) -> float:
        """Share of the requests that were held."""
        return self.held / max(1, self.requests)


class Simulation:
    """One run of a trace through a fleet.

    Args:
        setup: The fleet.
        trace: Requests in the order of their arrival.
        warm_up_s: Requests before it are not counted.
        seed: Of the routers' and the default policy's dice.
    """

    def __init__(self, setup: Setup, trace: list[Arrival], *, warm_up_s: float, seed: int = 0) -> None:
        self._setup = setup
        self._trace = trace
        self._warm_up_s = warm_up_s
        self._dice = random.Random(seed)
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.replicas = {
            f"r{i:04d}": FakeReplica(f"r{i:04d}", setup.width, setup.max_queue) for i in range(setup.replicas)
        }
        self._names = list(self.replicas)
        self._jobs: dict[CallTag, Job] = {}
        self.books = [self._book() for _ in range(setup.routers)]
        self._open = len(trace)
        self._counted: list[Job] = []
        self._totals: Counter[str] = Counter()
        self._slot_s = 0.0
        self._waste_s = 0.0
        self._waste_since_s: float | None = None
        self._longest_waste_s = 0.0
        self._idle = setup.replicas
        self._waiting = 0
        self._newest: dict[SamplerKey, float] = {}
        self._overtaken: set[CallTag] = set()
        self._decision_s = 0.0
        self._decisions = 0

    def run(self) -> Outcome:
        """Run it to the end of the last request."""
        for number, arrival in enumerate(self._trace):
            self._after(arrival.at_s, lambda number=number, arrival=arrival: self._arrive(number, arrival))
        if self._setup.policy == "sampler":
            for name in self._names:
                self._after(self._dice.random() * self._setup.report_s, lambda name=name: self._send_report(name))
        while self._open:
            at_s, _, event = heapq.heappop(self._events)
            self._pass_time(at_s)
            event()
        return self._outcome()

    def waits(self) -> list[tuple[float, float]]:
        """Of every counted request that was served, when it came and how long it waited for its slot."""
        return [
            (job.arrival.at_s, job.seated_s - job.arrival.at_s) for job in self._counted if job.seated_s is not None
        ]

    # ---- routers ----

    def _book(self) -> Book:
        book = Book(
            width=self._setup.width,
            room=self._setup.width + self._setup.max_queue,
            keep_s=self._setup.keep_s,
            clock=lambda: self.now_s,
            weights=self._setup.weights,
        )
        book.set_replicas(self._names)
        return book

    def _arrive(self, number: int, arrival: Arrival) -> None:
        router = self._dice.randrange(self._setup.routers)
        job = Job(arrival, CallTag(f"router{router}", number), router)
        self._jobs[job.tag] = job
        self._route(job)

    def _route(self, job: Job) -> None:
        job.sought_s = self.now_s
        if self._setup.policy == "sampler":
            started_s = time.thread_time()
            name, job.another = self.books[job.router].place(job.tag, job.wish, job.avoid)
            self._decision_s += time.thread_time() - started_s
            self._decisions += 1
            if name is None:
                raise RuntimeError("a fleet without replicas cannot serve")
        else:
            pair = self._dice.sample(self._names, min(2, len(self._names)))
            name = min(pair, key=lambda each: len(self.replicas[each].rows) + len(self.replicas[each].queued))
        job.at = name
        self._after(CALL_S, lambda: self._reach(job))

    def _act_on(self, router: int, moves: list[Move]) -> None:
        for move in moves:
            job = self._jobs[move.tag]
            self._after(CALL_S, lambda job=job, move=move: self._try_withdrawing(job, move))

    def _try_withdrawing(self, job: Job, move: Move) -> None:
        replica = self.replicas[move.source]
        was_idle = replica.idle
        if job.at == move.source and replica.withdraw(job):
            self._changed(replica, was_idle)
            self._waiting -= 1
            self._count(job, "moved")
            self._after(CALL_S, lambda: self._route(job))
        else:
            self._after(CALL_S, lambda: self._found_seated(job))

    def _found_seated(self, job: Job) -> None:
        book = self.books[job.router]
        book.seated(job.tag)
        self._act_on(job.router, book.moves())

    # ---- replicas ----

    def _reach(self, job: Job) -> None:
        replica = self.replicas[job.at]
        was_idle = replica.idle
        if not replica.accept(job):
            self._after(CALL_S, lambda: self._refuse(job, replica))
            return
        self._waiting += 1
        self._seat(replica)
        if job.seated_s is None and not job.held:
            # Jobs behind the first that needs another sampler are held as well.
            queued = list(replica.queued)
            held = replica.waiting.held(replica.running)
            job.held = queued.index(job.tag) >= len(queued) - held
        self._changed(replica, was_idle)

    def _seat(self, replica: FakeReplica) -> None:
        for job in replica.fill():
            self._waiting -= 1
            job.seated_s = self.now_s
            newest_s = self._newest.get(job.sampler, -1.0)
            if job.arrival.at_s < newest_s - 2 * CALL_S:
                self._overtaken.add(job.tag)
            self._newest[job.sampler] = max(newest_s, job.arrival.at_s)
            encode_s = ENCODE_S if replica.encode(job.arrival.voice) else 0.0
            self._count(job, "encodes", bool(encode_s))
            self._count(job, "voices", bool(job.arrival.voice))
            self._slot_s += job.arrival.render_s + encode_s
            self._after(FIRST_AUDIO_S + encode_s, lambda job=job: self.books[job.router].seated(job.tag))
            self._after(job.arrival.render_s + encode_s, lambda job=job, replica=replica: self._finish(job, replica))

    def _finish(self, job: Job, replica: FakeReplica) -> None:
        was_idle = replica.idle
        del replica.rows[job.tag]
        self._seat(replica)
        if not replica.rows:
            replica.running = None
        self._changed(replica, was_idle)
        self._after(CALL_S, lambda: self._close(job))

    def _close(self, job: Job) -> None:
        self._open -= 1
        if job.arrival.at_s >= self._warm_up_s:
            self._counted.append(job)
        if self._setup.policy == "sampler":
            book = self.books[job.router]
            name = book.close(job.tag)
            self._act_on(job.router, book.moves([] if name is None else [name]))

    def _refuse(self, job: Job, replica: FakeReplica) -> None:
        job.tries += 1
        job.avoid.add(replica.name)
        if job.another and job.tries < MOST_REFUSALS:
            self._route(job)
            return
        self._count(job, "refused")
        room = any(len(each.rows) + len(each.queued) < each.room for each in self.replicas.values())
        self._count(job, "refused_beside_room", room)
        self._close(job)

    def _send_report(self, name: str) -> None:
        report = self.replicas[name].report()
        for router, book in enumerate(self.books):
            age_s = self._setup.report_s * (0.5 + self._dice.random() / 2)
            self._after(age_s, lambda router=router, book=book: self._hear(router, book, name, report))
        self._after(self._setup.report_s, lambda: self._send_report(name))

    def _hear(self, router: int, book: Book, name: str, report: Report) -> None:
        book.report(name, report)
        self._act_on(router, book.moves([name]))

    # ---- time and counts ----

    def _after(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), event))

    def _pass_time(self, at_s: float) -> None:
        if self._idle and self._waiting:
            if self._waste_since_s is None:
                self._waste_since_s = self.now_s
            if self.now_s >= self._warm_up_s:
                self._waste_s += min(self._idle, self._waiting) * (at_s - self.now_s)
                self._longest_waste_s = max(self._longest_waste_s, at_s - max(self._waste_since_s, self._warm_up_s))
        else:
            self._waste_since_s = None
        self.now_s = at_s

    def _changed(self, replica: FakeReplica, was_idle: bool) -> None:
        self._idle += int(replica.idle) - int(was_idle)

    def _count(self, job: Job, what: str, amount: int = 1) -> None:
        if job.arrival.at_s >= self._warm_up_s:
            self._totals[what] += int(amount)

    def _outcome(self) -> Outcome:
        waits = sorted(wait_s for _, wait_s in self.waits()) or [0.0]
        slots_s = self.now_s * self._setup.replicas * self._setup.width
        return Outcome(
            requests=len(self._counted),
            held=sum(job.held for job in self._counted),
            refused=self._totals["refused"],
            refused_beside_room=self._totals["refused_beside_room"],
            p50_wait_s=statistics.median(waits),
            p95_wait_s=waits[int(0.95 * (len(waits) - 1))],
            max_wait_s=waits[-1],
            overtaken=sum(job.tag in self._overtaken for job in self._counted),
            utilisation=self._slot_s / slots_s,
            idle_waiting=self._waste_s / ((self.now_s - self._warm_up_s) * self._setup.replicas),
            longest_idle_waiting_s=self._longest_waste_s,
            encodes=self._totals["encodes"] / max(1, self._totals["voices"]),
            moved=self._totals["moved"],
            decision_us=self._decision_s / max(1, self._decisions) * 1e6,
        )
