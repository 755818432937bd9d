"""Streams for machines without a GPU, on which things come late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class LateStreams:
    """Copies to the host arrive when they have been waited for and not before: until then they hold other values."""

    def __init__(self) -> None:
        self.marks = 0
        self.sides = 0
        self.inside = False
        self._asked: list[Callable[[], object]] = []
        self._marked: list[Callable[[], object]] = []

    def mark(self) -> None:
        """What was asked for until now comes with this mark."""
        self.marks += 1
        self._marked, self._asked = self._marked + self._asked, []

    def reach_mark(self) -> None:
        """Deliver it."""
        arrived, self._marked = self._marked, []
        for arrive in arrived:
            arrive()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Deliver what was asked for inside at the end."""
        self.sides += 1
        before, self._asked, self.inside = self._asked, [], True
        yield
        self.inside = False
        for arrive in self._asked:
            arrive()
        self._asked = before

    def to_host(self, tensor: Tensor, host: Tensor | None = None) -> Tensor:
        """A tensor with other values, for the time being."""
        late = torch.empty_like(tensor) if host is None else host
        late.fill_(True if tensor.dtype == torch.bool else torch.nan)
        self._asked.append(lambda: late.copy_(tensor))
        return late
