"""Graphs: which shapes there are, and which are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from tests.fakes.capture import Kept, captures
from voxr_ray.voxcpm2.graphs import GraphKey, GraphKind, GraphOptions, Graphs, cuda_captures, graph_keys, read_lengths


def test_a_step_reads_lanes_no_further_than_twice_as_needed() -> None:
    assert read_lengths(4096) == (256, 512, 1024, 2048, 4096)
    assert read_lengths(100) == (128,)
    assert read_lengths(600) == (256, 512, 640)


def test_every_shape_of_the_largest_replica_is_kept() -> None:
    keys = graph_keys(64, 4096, 10)
    assert len(keys) == len(set(keys)) == 12 * (5 + 2)
    assert len(keys) <= GraphOptions(captures(Kept())).most


def test_what_every_answer_needs_is_captured_first() -> None:
    kinds = [key.kind for key in graph_keys(3, 600, 10)]
    assert kinds == [GraphKind.DRAW] * 3 + [GraphKind.DECODE] * 3 + [GraphKind.TAKE] * 9


def test_the_longest_unused_goes_first() -> None:
    graphs = Graphs(GraphOptions(captures(Kept()), most=2))
    one, two, three = (GraphKey(GraphKind.TAKE, width, 256) for width in (1, 2, 3))
    for key in (one, two, one, three):
        graphs.run(key, lambda: None)
    assert graphs.kept == (one, three)


def test_each_kind_is_captured_by_its_own() -> None:
    kept = {kind: Kept() for kind in GraphKind}
    graphs = Graphs(GraphOptions(kept))
    graphs.run(GraphKey(GraphKind.DECODE, 1, 1), lambda: None)
    assert [kept[kind].captured for kind in GraphKind] == [0, 0, 1]


def test_a_region_runs_once_however_it_is_run() -> None:
    ran: list[str] = []
    graphs = Graphs(GraphOptions(captures(Kept(failures=1))))
    failing, captured = GraphKey(GraphKind.DRAW, 1, 10), GraphKey(GraphKind.DRAW, 2, 10)
    for key in (failing, failing, captured, captured):
        graphs.run(key, lambda: ran.append("once"))
    assert len(ran) == 4
    assert graphs.failing
    assert graphs.kept == (captured,)


def test_a_fault_of_the_region_is_no_failed_capture() -> None:
    graphs = Graphs(GraphOptions(captures(Kept())))

    def broken() -> None:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        graphs.run(GraphKey(GraphKind.DRAW, 1, 10), broken)
    assert not graphs.failing


def test_what_runs_beside_the_steps_is_captured_on_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch captures on one stream for everybody who brings none, and cuBLAS works in a memory of the stream's."""
    used: list[tuple[object, object]] = []

    @contextmanager
    def graph(_: object, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        used.append((pool, stream))
        yield

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=None))
    kinds = cuda_captures(torch.device("cuda:0"))
    for kind in (GraphKind.DRAW, GraphKind.TAKE, GraphKind.DECODE):
        kinds[kind](lambda: None)
    draw, take, decode = used
    assert draw == take
    assert not {*draw} & {*decode}
