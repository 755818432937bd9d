"""Captured steps on a CPU: the same control flow, with a capture that keeps the step and runs it again.

A real graph reads and writes the addresses it was captured with. So does what is kept here, which is bound to the same
tensors: whoever copied an input to another place, or kept an output that the next replay overwrites, would see it in
the numbers.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.checkpoints import variant_config, write_checkpoint
from tests.fakes.capture import Kept
from tests.fakes.driver import Driver, Probe
from tests.rendering import finish
from voxr_ray.engine.widths import stepped_widths
from voxr_ray.messages import Sampler, SynthRequest
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.graphs import GraphKey, GraphOptions, Region, StepGraphs, count_graphs, read_lengths
from voxr_ray.voxcpm2.lanes import Lanes
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel
from voxr_ray.voxcpm2.tokenizer import TextTokenizer

STEPS = 3


class NoValues(TorchFunctionMode):
    """Fails where values are looked at, or taken from the host: a capture cannot."""

    FORBIDDEN = frozenset({"item", "tolist", "__bool__", "cpu", "numpy", "tensor", "as_tensor", "from_numpy"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.FORBIDDEN:
            raise AssertionError(f"{name} in a captured step")
        return func(*args, **(kwargs or {}))


class NoShapesOfValues(TorchDispatchMode):
    """Fails where a shape follows from values, as that of an index by booleans does."""

    FORBIDDEN = frozenset({"nonzero", "masked_select", "unique", "_unique2", "_local_scalar_dense"})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        if name in self.FORBIDDEN or any(each is not None and each.dtype == torch.bool for each in indices):
            raise AssertionError(f"{name} in a captured step")
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[VoxCPM2, TextTokenizer]:
    folder = write_checkpoint(tmp_path_factory.mktemp("random") / "small", variant_config("long_rope_rate_bins"))
    files = CheckpointFiles.find(folder)
    return load_network(files, dtype="float32"), TextTokenizer(files.tokenizer)


def model_of(parts: tuple[VoxCPM2, TextTokenizer], capture: Kept | None, most: int = 64) -> VoxCPM2SlotModel:
    options = None if capture is None else GraphOptions(capture, inference_timesteps=STEPS, most=most)
    return VoxCPM2SlotModel(*parts, graphs=options)


def request(index: int, cfg_value: float = 2.0, steps: int = STEPS) -> SynthRequest:
    patches = 4 + 3 * (index % 4)
    return SynthRequest(
        text="Said. " * (1 + index), seed=index, min_len=patches, max_len=patches, retry_badcase=False,
        cfg_value=cfg_value, inference_timesteps=steps,
    )  # fmt: skip


def run(model: VoxCPM2SlotModel, number: int) -> list[bytes]:
    """A schedule of arrivals in cycles of the loop, and what each of them got."""
    rng = random.Random(number)
    driver = Driver(model, max_batch=5, continuous_capacity=600, max_queue=64, pieces_per_cycle=3)  # type: ignore[arg-type]
    probes: list[tuple[Probe, bool]] = []
    for index in range(8):
        stream = rng.random() < 0.5
        asked = request(index, rng.choice([2.0, 2.0, 1.3]), rng.choice([STEPS, STEPS, STEPS + 1]))
        probes.append((driver.submit(asked, stream=stream), stream))
        for _ in range(rng.randrange(6)):
            driver.cycle()
    driver.run(lambda: all(probe.ended for probe, _ in probes))
    return [(probe.streamed if stream else probe.result).samples.tobytes() for probe, stream in probes]


@pytest.mark.parametrize("number", range(3))
def test_captured_steps_give_the_bytes_of_eager_ones(parts: tuple[VoxCPM2, TextTokenizer], number: int) -> None:
    expected = run(model_of(parts, None), number)
    capture = Kept()
    assert run(model_of(parts, capture), number) == expected
    assert capture.replayed > 20


@pytest.mark.parametrize("most", [1, 3])
def test_few_kept_graphs_give_the_same_bytes(parts: tuple[VoxCPM2, TextTokenizer], most: int) -> None:
    capture = Kept()
    assert run(model_of(parts, capture, most=most), 1) == run(model_of(parts, None), 1)
    assert capture.captured > most


class TestKeeping:
    """What is captured, dropped and given up."""

    @pytest.fixture
    def lanes(self, parts: tuple[VoxCPM2, TextTokenizer]) -> Lanes:
        return Lanes(parts[0], 3, 600, whole=True)

    def test_a_warm_up_captures_every_shape_and_leaves_no_trace(
        self, parts: tuple[VoxCPM2, TextTokenizer], lanes: Lanes, caplog: pytest.LogCaptureFixture
    ) -> None:
        graphs = StepGraphs(parts[0], lanes, GraphOptions(Kept(), inference_timesteps=STEPS))
        with caplog.at_level(logging.INFO):
            graphs.warm_up()
        shapes = {(width, length) for width in stepped_widths(3) for length in read_lengths(600)}
        assert {(key.width, key.length) for key in graphs.kept} == shapes
        assert len(shapes) == count_graphs(3, 600) == 9
        assert all(not tensor.any() for tensor in (*lanes.tensors.caches(), *lanes.tensors.others()))
        assert "captured 9 of 9 steps" in caplog.text

    def test_the_longest_unused_goes_first(self, parts: tuple[VoxCPM2, TextTokenizer], lanes: Lanes) -> None:
        graphs = StepGraphs(parts[0], lanes, GraphOptions(Kept(), most=2))
        with torch.inference_mode():
            for width in (1, 2, 1, 3):
                graphs.step(width, Sampler(2.0, STEPS))
        assert graphs.kept == (GraphKey(1, 256, STEPS), GraphKey(3, 256, STEPS))

    def test_a_guidance_needs_no_graph_of_its_own(self, parts: tuple[VoxCPM2, TextTokenizer], lanes: Lanes) -> None:
        capture = Kept()
        graphs = StepGraphs(parts[0], lanes, GraphOptions(capture))
        with torch.inference_mode():
            drawn = []
            for cfg_value in (2.0, 1.0, 2.0):
                lanes.wipe()
                lanes.tensors.base_hidden.fill_(0.5)
                drawn.append(graphs.step(2, Sampler(cfg_value, STEPS))[1])
        assert (capture.captured, capture.replayed) == (1, 2)
        assert torch.equal(drawn[0], drawn[2])
        assert not torch.equal(drawn[0], drawn[1])

    def test_what_cannot_be_captured_runs_without_and_is_not_tried_again(
        self, parts: tuple[VoxCPM2, TextTokenizer], caplog: pytest.LogCaptureFixture
    ) -> None:
        capture = Kept(failures=2)
        model = model_of(parts, capture)
        assert run(model, 2) == run(model_of(parts, None), 2)
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "operation not permitted" in warnings[0]
        assert "and more" not in warnings[0]
        assert capture.captured, "shapes that did not fail are captured all the same"

    def test_a_failing_platform_steps_eagerly(self, parts: tuple[VoxCPM2, TextTokenizer]) -> None:
        capture = Kept(failures=10**6)
        assert run(model_of(parts, capture), 0) == run(model_of(parts, None), 0)
        assert capture.replayed == 0
        assert 10**6 - capture.failures < 40, "each shape is tried once"

    def test_lanes_that_could_still_move_are_refused(self, parts: tuple[VoxCPM2, TextTokenizer]) -> None:
        with pytest.raises(ValueError, match="1 of 3 lanes"):
            StepGraphs(parts[0], Lanes(parts[0], 3, 600), GraphOptions(Kept()))

    def test_a_fault_of_the_step_itself_is_not_taken_for_one_of_the_capture(
        self, parts: tuple[VoxCPM2, TextTokenizer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = model_of(parts, Kept(), most=1)
        model.open(2, 100)
        asked = request(0)
        model.admit(0, finish(model.prefill(model.plan(asked), None, None)), 0)

        def broken(*_: Any) -> Any:
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(parts[0], "stop_wins", broken)
        with pytest.raises(RuntimeError, match="the device is gone"):
            model.step(2, asked.sampler)
        model.release(0)


def test_a_captured_step_asks_nothing_of_the_host(parts: tuple[VoxCPM2, TextTokenizer]) -> None:
    """What a capture on a GPU would refuse. The first run makes what is made once."""
    network = parts[0]
    regions: list[Region] = []

    def capture(region: Region) -> Callable[[], None]:
        regions.append(region)
        return region

    with torch.inference_mode():
        lanes = Lanes(network, 2, 600, whole=True)
        StepGraphs(network, lanes, GraphOptions(capture)).step(2, Sampler(2.0, STEPS))
        (region,) = regions
        with NoValues(), NoShapesOfValues():
            region()
        with pytest.raises(AssertionError, match="tensor in"), NoValues():
            torch.tensor([1.0])
        with pytest.raises(AssertionError, match="item in"), NoValues():
            lanes.tensors.base_hidden[0, 0].item()
        with pytest.raises(AssertionError, match="index in"), NoShapesOfValues():
            lanes.tensors.base_hidden[lanes.tensors.base_hidden > 0]


def test_a_step_reads_lanes_no_further_than_twice_as_needed() -> None:
    assert read_lengths(4096) == (256, 512, 1024, 2048, 4096)
    assert read_lengths(100) == (128,)
    assert read_lengths(600) == (256, 512, 640)
    assert count_graphs(64, 4096) == 60


def test_patches_drawn_stay_as_they_were(parts: tuple[VoxCPM2, TextTokenizer]) -> None:
    """A replay overwrites where it drew; what waits for its decode must not be there."""
    model = model_of(parts, Kept())
    model.open(1, 300)
    asked = request(1)
    model.admit(0, finish(model.prefill(model.plan(asked), None, None)), 1)
    model.step(1, asked.sampler)
    (first,) = model.lanes.seats[0].pending
    before = first.numpy().copy()
    stops = model.step(1, asked.sampler)
    held = stops.copy()
    model.step(1, asked.sampler)
    assert np.array_equal(first.numpy(), before)
    assert np.array_equal(stops, held)
    model.release(0)
