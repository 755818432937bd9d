"""What runs beside the steps: decodes and encodes, on a stream of their own where the device has streams.

A patch can be decoded as soon as it is drawn, while the language models still take it in; a recording can be encoded
meanwhile, too. So a captured step marks where its patches are drawn (another marks its end), and what is put beside the
steps waits for the last mark and for nothing that the steps' stream was given after it. Nor may it read what was made
there after the mark.

Whoever puts work beside the steps has it finished before going on. From there on both streams may use what it made,
and its memory: nothing else has to tell the allocator which stream used what.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class Streams(Protocol):
    """The stream of the steps, which is the current one, and the one beside it. Owner thread."""

    def mark(self) -> None:
        """Mark what the steps' stream has been given so far."""
        ...

    def reach_mark(self) -> None:
        """Wait until the last mark is reached."""
        ...

    def beside(self) -> AbstractContextManager[None]:
        """Put what runs inside beside the steps, behind the last mark; done when it is left."""
        ...

    def to_host(self, tensor: Tensor, host: Tensor | None = None) -> Tensor:
        """A copy on the host, there once the mark after it is reached or :meth:`beside` is left.

        It is made in ``host``, which is pinned on a GPU, or in new memory.
        """
        ...


class OneStream:
    """For devices that have no streams: everything is done in the order it comes."""

    def mark(self) -> None:
        """See :meth:`Streams.mark`."""

    def reach_mark(self) -> None:
        """See :meth:`Streams.reach_mark`."""

    def beside(self) -> AbstractContextManager[None]:
        """See :meth:`Streams.beside`."""
        return nullcontext()

    def to_host(self, tensor: Tensor, host: Tensor | None = None) -> Tensor:
        """See :meth:`Streams.to_host`; the tensor itself, where it is on the host already and to stay there."""
        return tensor.cpu() if host is None else host.copy_(tensor)


class CudaStreams:
    """Those of a GPU.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._drawn = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """See :meth:`Streams.mark`."""
        self._drawn.record(torch.cuda.current_stream(self._device))

    def reach_mark(self) -> None:
        """See :meth:`Streams.reach_mark`."""
        self._drawn.synchronize()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """See :meth:`Streams.beside`."""
        self._beside.wait_event(self._drawn)
        try:
            with torch.cuda.stream(self._beside):
                yield
        finally:
            self._beside.synchronize()

    def to_host(self, tensor: Tensor, host: Tensor | None = None) -> Tensor:
        """See :meth:`Streams.to_host`."""
        if host is None:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)


def streams_of(device: torch.device) -> Streams:
    """The streams of a device."""
    return CudaStreams(device) if device.type == "cuda" else OneStream()
