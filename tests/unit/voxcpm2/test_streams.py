"""Streams of a GPU: what is asked of it, in which order. No GPU is needed to ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from voxr_ray.voxcpm2.streams import CudaStreams, OneStream, streams_of

CUDA = torch.device("cuda:0")


class FakeCuda:
    """Takes down what a stream and an event are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        told = self.told

        class Stream:
            def __init__(self, device: torch.device) -> None:
                assert device == CUDA

            def wait_event(self, event: object) -> None:
                told.append("beside: wait for the mark")

            def synchronize(self) -> None:
                told.append("host: wait for what is beside")

        class Event:
            def record(self, stream: object) -> None:
                told.append(f"{stream}: mark")

            def synchronize(self) -> None:
                told.append("host: wait for the mark")

        @contextmanager
        def entered(_: Stream) -> Iterator[None]:
            told.append("enter")
            yield
            told.append("leave")

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", entered)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "steps")


def test_what_runs_beside_waits_for_the_mark_alone_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    streams = streams_of(CUDA)
    assert isinstance(streams, CudaStreams)
    streams.mark()
    streams.reach_mark()
    with streams.beside():
        fake.told.append("decode")
    assert fake.told == [
        "steps: mark",
        "host: wait for the mark",
        "beside: wait for the mark",
        "enter",
        "decode",
        "leave",
        "host: wait for what is beside",
    ]


def test_a_failure_beside_is_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory goes back to the allocator, which would give it to the steps."""
    fake = FakeCuda(monkeypatch)
    with pytest.raises(ValueError, match="broken"), streams_of(CUDA).beside():
        raise ValueError("broken")
    assert fake.told[-1] == "host: wait for what is beside"


def test_a_device_without_streams_does_things_in_their_order() -> None:
    streams = streams_of(torch.device("cpu"))
    assert isinstance(streams, OneStream)
    x = torch.zeros(2)
    streams.mark()
    with streams.beside():
        x += 1
    streams.reach_mark()
    assert streams.to_host(x).tolist() == [1.0, 1.0]
