"""Ask again while the first to be asked is silent: one replica that is frozen or busy speaks for none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from voxr_ray.errors import VoxrError

T = TypeVar("T")


async def first_answer(ask: Callable[[], Awaitable[T]], *, every_s: float, most: int) -> T:
    """The first answer to a question that may be asked several times. What is still unanswered is cancelled.

    Args:
        ask: Asks once. Whom, is not decided here: a silent one looks busy to whoever balances by load.
        every_s: Seconds of silence after which it is asked once more.
        most: How often it is asked at most.

    Raises:
        VoxrError: Every question failed; the last failure.
    """
    asked: set[asyncio.Future[T]] = set()
    failures: list[VoxrError] = []
    try:
        for left in range(most - 1, -1, -1):
            asked.add(asyncio.ensure_future(ask()))
            while asked:
                done, asked = await asyncio.wait(
                    asked, timeout=every_s if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for each in done:
                    try:
                        return each.result()
                    except VoxrError as error:
                        failures.append(error)
        raise failures[-1]
    finally:
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
