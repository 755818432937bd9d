"""Where calls of an ingress meet the book of the router behind its handle.

Serve may run that router on a loop of its own. A call is an object of the ingress that Serve hands to the router as an
argument, so the two find each other without anything global: the ingress speaks to the desk by posting to its loop, the
desk to the call by posting to the ingress's. On its way to a replica a call pickles to its tag.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from voxr_ray.serve.routing.book import Book, Move
from voxr_ray.serve.routing.values import CallTag, Report, Wish


class Call:
    """A render under way, in the process that makes it.

    Args:
        tag: Its name.
        wish: What it needs.
        ask_back: Called on the ingress's loop with the name of a replica that the call should be taken back from.
    """

    def __init__(self, tag: CallTag, wish: Wish, ask_back: Callable[[str], None]) -> None:
        self.tag = tag
        self.wish = wish
        self.avoid: frozenset[str] = frozenset()
        """Replicas that have refused it."""
        self._ask_back = ask_back
        self._loop = asyncio.get_running_loop()
        self._desk: Desk | None = None
        self._over = False
        self._at: str | None = None
        self._another = False

    def __reduce__(self) -> tuple[type[CallTag], tuple[str, int]]:
        return CallTag, (self.tag.router, self.tag.number)

    # Called by the ingress.

    def refused(self) -> bool:
        """Note that the replica has no room for it; whether another one may have."""
        if self._at is None or not self._another:
            return False
        self.avoid |= {self._at}
        return True

    def seated(self) -> None:
        """Say that it has a slot."""
        self._tell(Desk.seated)

    def stays(self) -> None:
        """Say that it could not be asked back."""
        self._tell(Desk.stays)

    def close(self) -> None:
        """Say that it has ended. One that was not placed yet never will be counted."""
        self._over = True
        self._tell(Desk.close)

    # Called by the desk.

    def join(self, desk: Desk) -> bool:
        """Meet the desk that places it.

        Returns:
            Whether it is still under way. Asked after the desk is known to it, and answered by :meth:`close` in the
            opposite order, so that a call which ends meanwhile is closed by one of the two.
        """
        self._desk = desk
        return not self._over

    def placed(self, name: str, another: bool) -> None:
        """Learn where it is sent, and whether another replica could take it, too."""
        self._at, self._another = name, another

    def ask_back(self, source: str) -> None:
        """Have it taken back from where it waits."""
        _post(self._loop, self._ask_back, source)

    def _tell(self, what: Callable[[Desk, CallTag], None]) -> None:
        if self._desk is not None:
            self._desk.post(what, self.tag)


class Desk:
    """A book, and the calls in it. Everything but :meth:`post` runs on its router's loop.

    Args:
        book: Decides.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self._calls: dict[CallTag, Call] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def post(self, what: Callable[[Desk, CallTag], None], tag: CallTag) -> None:
        """Have something done on the desk's loop. Any thread."""
        if self._loop is not None:
            _post(self._loop, what, self, tag)

    def place(self, call: Call) -> str | None:
        """Choose a replica for a call and count it there.

        Returns:
            The replica's name; ``None`` if there is none, or if nobody waits for the call any more.
        """
        self._loop = asyncio.get_running_loop()
        if not call.join(self):
            self.book.close(call.tag)
            return None
        name, another = self.book.place(call.tag, call.wish, call.avoid)
        if name is not None:
            self._calls[call.tag] = call
            call.placed(name, another)
        return name

    def sent(self, call: Call, name: str) -> None:
        """Note where Serve has sent a call."""
        self.book.placed_at(call.tag, name)

    def seated(self, tag: CallTag) -> None:
        """Note that a call has a slot."""
        self.book.seated(tag)

    def stays(self, tag: CallTag) -> None:
        """Note that a call could not be asked back."""
        self.book.stays(tag)

    def close(self, tag: CallTag) -> None:
        """Note that a call has ended; what waits elsewhere may take its place."""
        self._calls.pop(tag, None)
        name = self.book.close(tag)
        if name is not None:
            self._act_on(self.book.moves([name]))

    def update(self, names: Iterable[str], reports: Iterable[tuple[str, Report]]) -> None:
        """Take in which replicas there are, and what those say that have something new to say."""
        self.book.set_replicas(names)
        for name, report in reports:
            self.book.report(name, report)
        self._act_on(self.book.moves())

    def _act_on(self, moves: Iterable[Move]) -> None:
        for move in moves:
            call = self._calls.get(move.tag)
            if call is None:
                self.book.stays(move.tag)
            else:
                call.ask_back(move.source)


def _post(loop: asyncio.AbstractEventLoop, what: Callable[..., Any], *arguments: Any) -> None:
    """Run something on a loop, or not at all if the loop has ended: then nobody is left to care."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what, *arguments)
