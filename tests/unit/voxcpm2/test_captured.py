"""Captured steps and decodes on a CPU: the same control flow, with a capture that keeps them and runs them again.

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
from tests.fakes.capture import Kept, captures
from tests.fakes.driver import Driver, Probe
from tests.fakes.streams import LateStreams
from tests.rendering import finish
from voxr_ray.engine.model import Padding
from voxr_ray.messages import Sampler, SynthRequest
from voxr_ray.voxcpm2.captured import CapturedSteps
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.graphs import GraphKind, GraphOptions, Region, graph_keys
from voxr_ray.voxcpm2.lanes import Lanes
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel
from voxr_ray.voxcpm2.streams import OneStream
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
    options = None if capture is None else GraphOptions(captures(capture), inference_timesteps=STEPS, most=most)
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
        graphs = CapturedSteps(parts[0], lanes, GraphOptions(captures(Kept()), inference_timesteps=STEPS), OneStream())
        with caplog.at_level(logging.INFO):
            graphs.warm_up()
        assert list(graphs.kept) == graph_keys(3, 600, STEPS)
        assert all(not tensor.any() for tensor in (*lanes.tensors.caches(), *lanes.tensors.others()))
        assert "captured 15 of 15 graphs" in caplog.text

    def test_a_guidance_needs_no_graph_of_its_own(self, parts: tuple[VoxCPM2, TextTokenizer], lanes: Lanes) -> None:
        capture = Kept()
        graphs = CapturedSteps(parts[0], lanes, GraphOptions(captures(capture)), OneStream())
        with torch.inference_mode():
            drawn = []
            for cfg_value in (2.0, 1.0, 2.0):
                lanes.wipe()
                lanes.tensors.base_hidden.fill_(0.5)
                drawn.append(graphs.step(2, Sampler(cfg_value, STEPS))[1])
        assert (capture.captured, capture.replayed) == (2, 4), "one that draws and one that takes"
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
            CapturedSteps(parts[0], Lanes(parts[0], 3, 600), GraphOptions(captures(Kept())), OneStream())

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


def test_what_is_captured_asks_nothing_of_the_host(parts: tuple[VoxCPM2, TextTokenizer]) -> None:
    """What a capture on a GPU would refuse. The first run makes what is made once."""
    network = parts[0]
    regions: list[Region] = []

    def capture(region: Region) -> Callable[[], None]:
        regions.append(region)
        return region

    with torch.inference_mode():
        lanes = Lanes(network, 2, 600, whole=True)
        graphs = CapturedSteps(network, lanes, GraphOptions(captures(capture)), OneStream())
        graphs.step(2, Sampler(2.0, STEPS))
        graphs.decode([1])
        assert [key.kind for key in graphs.kept] == list(GraphKind)
        for region in regions:
            with NoValues(), NoShapesOfValues():
                region()
        with pytest.raises(AssertionError, match="tensor in"), NoValues():
            torch.tensor([1.0])
        with pytest.raises(AssertionError, match="item in"), NoValues():
            lanes.tensors.base_hidden[0, 0].item()
        with pytest.raises(AssertionError, match="index in"), NoShapesOfValues():
            lanes.tensors.base_hidden[lanes.tensors.base_hidden > 0]


@torch.inference_mode()
def test_decisions_are_the_steps_own(parts: tuple[VoxCPM2, TextTokenizer]) -> None:
    """Copies to the host that have not arrived yet say that everybody stops."""
    lanes, options = Lanes(parts[0], 16, 100, whole=True), GraphOptions(captures(Kept()))
    hidden = torch.randn(lanes.tensors.base_hidden.shape, generator=torch.Generator().manual_seed(4))
    expected = parts[0].stop_wins(hidden).numpy()
    graphs = CapturedSteps(parts[0], lanes, options, LateStreams())
    assert 0 < expected.sum() < len(expected)
    for _ in range(2):
        lanes.tensors.base_hidden.copy_(hidden)
        stops, _ = graphs.step(16, Sampler(2.0, STEPS))
        assert np.array_equal(stops, expected)


def test_lanes_that_are_not_decoded_keep_their_state(parts: tuple[VoxCPM2, TextTokenizer]) -> None:
    """As when a decode has failed and is tried again row by row."""

    def audio(groups: list[list[int]]) -> dict[int, bytes]:
        model = model_of(parts, Kept())
        model.open(4, 300)
        drawn: dict[int, bytes] = {}
        for slot in (0, 2, 3):
            asked = request(slot)
            model.admit(slot, finish(model.prefill(model.plan(asked), None, None)), slot)
        for _ in range(3):
            model.step(4, Sampler(2.0, STEPS))
            for group in groups:
                for slot, samples in zip(group, model.decode(group), strict=True):
                    drawn[slot] = drawn.get(slot, b"") + samples.tobytes()
        return drawn

    assert audio([[3], [0, 2]]) == audio([[0, 2, 3]])


class LateTakes(VoxCPM2SlotModel):
    """Patches are taken in as late as a stream may: when something else is asked of the lanes, behind their decode."""

    late: list[Callable[[], None]]
    outrun = 0

    @torch.inference_mode()
    def take_in(self) -> None:
        late, self.late = self.late, []
        for take in late:
            take()

    def step(self, width: int, sampler: Sampler) -> np.ndarray:
        self.take_in()
        return super().step(width, sampler)

    def decode(self, slots: Any) -> list[np.ndarray]:
        self.outrun += len(self.late)
        return super().decode(slots)

    def admit(self, slot: int, handoff: Any, seed: int) -> None:
        self.take_in()
        super().admit(slot, handoff, seed)

    def release(self, slot: int) -> None:
        self.take_in()
        super().release(slot)


@pytest.mark.parametrize("number", range(2))
def test_decodes_and_the_taking_in_of_patches_do_not_meet(parts: tuple[VoxCPM2, TextTokenizer], number: int) -> None:
    """On a GPU both run at once, so neither may read what the other writes: here the later one comes first."""

    def capture_late(region: Region) -> Callable[[], None]:
        return lambda: model.late.append(region)

    kinds = captures(Kept()) | {GraphKind.TAKE: capture_late}
    model = LateTakes(*parts, graphs=GraphOptions(kinds, inference_timesteps=STEPS), streams=LateStreams())
    model.late = []
    assert run(model, number) == run(model_of(parts, None), number)
    assert model.outrun > 20


@pytest.mark.parametrize("captured", [True, False])
def test_nothing_is_read_before_it_has_been_waited_for(
    parts: tuple[VoxCPM2, TextTokenizer], monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    streams = LateStreams()
    options = GraphOptions(captures(Kept()), inference_timesteps=STEPS) if captured else None
    model = VoxCPM2SlotModel(*parts, graphs=options, streams=streams)
    assert run(model, 0) == run(model_of(parts, None), 0)
    assert streams.marks > streams.sides > 20, "a decode behind each step; a warm-up and admissions mark too"
    made: list[bool] = []
    new_state = parts[0].audio_vae.encoder.new_state

    def watched(rows: int) -> Any:
        made.append(streams.inside)
        return new_state(rows)

    monkeypatch.setattr(parts[0].audio_vae.encoder, "new_state", watched)
    clip = (np.random.default_rng(3).standard_normal(4000) * 3000).astype(np.int16)
    features, expected = (finish(each.encode(clip, Padding.LEFT)) for each in (model, model_of(parts, None)))
    assert np.array_equal(features, expected)
    assert made[0], "what is read beside the steps is made there"


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
