"""The torch :class:`SlotModel`: plans, pieces, lanes that widen and lanes that forget."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from scripts.random_checkpoint import build
from tests.rendering import finish, render, seat
from voxr_ray.engine.model import Padding
from voxr_ray.engine.widths import stepped_width, stepped_widths
from voxr_ray.errors import InvalidRequest
from voxr_ray.messages import Prompt, Reference, Sampler, SynthRequest
from voxr_ray.voxcpm2.hub import default_checkpoint
from voxr_ray.voxcpm2.lanes import Lanes
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel

RATE_HZ = 16_000
SAMPLER = Sampler(2.0, 4)


def clip(seconds: float, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(int(seconds * RATE_HZ))
    return (noise * 3000).astype(np.int16)


def request(text: str = "Hello.", **fields: object) -> SynthRequest:
    return SynthRequest(text=text, inference_timesteps=4, **fields)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> VoxCPM2SlotModel:
    """A checkpoint with one token a character, so that lengths can be told from texts."""
    folder = tmp_path_factory.mktemp("random")
    build(folder)
    return load_slot_model(str(folder), device="cpu")


@pytest.fixture
def model(loaded: VoxCPM2SlotModel) -> Iterator[VoxCPM2SlotModel]:
    loaded.open(8, 512)
    yield loaded
    assert not loaded.lanes.seats, "a test left a lane seated"


def test_the_default_checkpoint_says_what_it_is() -> None:
    default = load_slot_model(str(default_checkpoint()), device="cpu")
    assert default.name == "voxr"
    assert default.notice is not None
    assert "not for production" in default.notice


@pytest.mark.parametrize("seconds", [0.01, 1.0, 7.3])
@pytest.mark.parametrize("text", ["a", "A somewhat longer sentence to speak."])
@pytest.mark.parametrize("mode", ["zero_shot", "reference", "prompt", "both"])
def test_planned_length_is_the_length_used(model: VoxCPM2SlotModel, mode: str, text: str, seconds: float) -> None:
    """R1."""
    fields: dict[str, object] = {}
    if mode in ("reference", "both"):
        fields["reference"] = Reference.of_clip(clip(seconds), RATE_HZ)
    if mode in ("prompt", "both"):
        fields["prompt"] = Prompt(digest="", clip=clip(seconds), text="Before.")
    wanted = request(text, **fields)
    plan = model.plan(wanted)
    seat(model, 0, wanted, 1)
    assert model.lanes.seats[0].position == plan.seq_len
    model.release(0)


def test_text_tokens_count_the_target_alone(model: VoxCPM2SlotModel) -> None:
    plain = model.plan(request("Hello."))
    prompted = model.plan(request("Hello.", prompt=Prompt(digest="", clip=clip(1), text="Before it. ")))
    assert plain.text_tokens == prompted.text_tokens == len(plain.token_ids)
    assert len(prompted.token_ids) > prompted.text_tokens


def test_white_space_of_the_target_is_collapsed_and_of_the_prompt_kept(model: VoxCPM2SlotModel) -> None:
    assert model.plan(request("a \n\t b")) == model.plan(request("a b"))
    prompt = Prompt(digest="", clip=clip(1), text="x \n y ")
    single = Prompt(digest="", clip=clip(1), text="x y ")
    assert len(model.plan(request("a", prompt=prompt)).token_ids) > len(
        model.plan(request("a", prompt=single)).token_ids
    )


@pytest.mark.parametrize("shape", [(3, 4, 31), (3, 5, 32), (0, 4, 32), (3, 128)])
def test_features_of_another_shape_are_refused(model: VoxCPM2SlotModel, shape: tuple[int, ...]) -> None:
    features = np.zeros(shape, dtype=np.float32)
    with pytest.raises(InvalidRequest, match="features have shape"):
        model.plan(request(reference=Reference(digest="", features=features)))


def test_a_recording_without_samples_is_refused(model: VoxCPM2SlotModel) -> None:
    with pytest.raises(InvalidRequest, match="no samples"):
        model.plan(request(reference=Reference.of_clip(np.zeros(0, dtype=np.int16), RATE_HZ)))


def test_carried_features_are_the_encoded_clip(model: VoxCPM2SlotModel) -> None:
    """A request that carries features gets the bytes that its clip would have got."""
    recording = clip(1.3)
    features = finish(model.encode(recording, Padding.RIGHT))
    by_clip = request(reference=Reference.of_clip(recording, RATE_HZ), max_len=6, min_len=6)
    by_features = request(reference=Reference(digest="d", features=features), max_len=6, min_len=6)
    assert np.array_equal(render(model, by_clip, 4).samples, render(model, by_features, 4).samples)


def test_padding_sides_differ(model: VoxCPM2SlotModel) -> None:
    recording = clip(0.5)
    left = finish(model.encode(recording, Padding.LEFT))
    right = finish(model.encode(recording, Padding.RIGHT))
    assert left.shape == right.shape == (4, 4, 32)
    assert not np.array_equal(left, right)


def test_long_work_is_cut_and_the_cut_does_not_depend_on_who_waits(model: VoxCPM2SlotModel) -> None:
    """Rule 18: every piece is bounded, and running other rows between two pieces changes nothing."""
    recording = clip(6.0)
    wanted = request("Some words. " * 20, reference=Reference.of_clip(recording, RATE_HZ), max_len=5, min_len=5)
    pieces = sum(1 for _ in model.encode(recording, Padding.RIGHT))
    assert pieces >= 15
    alone = render(model, wanted, 9)

    seat(model, 1, request("Neighbour."), 3)
    encoding = model.encode(recording, Padding.RIGHT)
    features = _interleave(model, encoding)
    work = model.prefill(model.plan(wanted), features, None)
    model.admit(0, _interleave(model, work), 9)
    chunks = []
    for _ in range(5):
        model.step(2, wanted.sampler)
        chunks.append(model.decode([0, 1])[0])
    model.release(0)
    model.release(1)
    assert np.array_equal(np.concatenate(chunks), alone.samples)


def _interleave(model: VoxCPM2SlotModel, work: object) -> object:
    while True:
        try:
            next(work)  # type: ignore[call-overload]
        except StopIteration as stop:
            return stop.value
        model.step(2, SAMPLER)


def test_nothing_survives_a_release(model: VoxCPM2SlotModel) -> None:
    """The next occupant of a lane inherits nothing, not even from a take that broke."""
    wanted = request("Clean.", max_len=6, min_len=6)
    fresh = render(model, wanted, 2)
    prompt = Prompt(digest="", clip=clip(2.0), text="Before.")
    seat(model, 0, request("Dirty.", prompt=prompt, reference=Reference.of_clip(clip(3.0, 1), RATE_HZ)), 5)
    for _ in range(3):
        model.step(1, SAMPLER)
    model.decode([0])
    model.step(1, SAMPLER)  # leaves a patch that was never decoded
    for layer in model.lanes.tensors.base_cache:
        layer.value[0, :, model.lanes.seats[0].position - 1] = torch.nan
    model.release(0)
    tensors = model.lanes.tensors
    assert all(not tensor[0].any() for tensor in tensors.caches() + tensors.others())
    assert np.array_equal(render(model, wanted, 2).samples, fresh.samples)


def test_lanes_start_at_one_row_and_widen(model: VoxCPM2SlotModel) -> None:
    wanted = request("Wide.", max_len=4, min_len=4)
    alone = render(model, wanted, 1)
    assert model.lanes.rows == 1
    seat(model, 0, wanted, 1)
    chunks = []
    for rows in (1, 3, 8):
        if rows > 1:
            seat(model, rows - 1, request("Later."), rows)
        model.step(rows, wanted.sampler)
        chunks.append(model.decode([0])[0])
        assert model.lanes.rows == 1 << (rows - 1).bit_length()
    model.step(8, wanted.sampler)
    chunks.append(model.decode([0])[0])
    for slot in (0, 2, 7):
        model.release(slot)
    assert np.array_equal(np.concatenate(chunks), alone.samples)


def test_no_memory_to_widen_leaves_the_lanes_as_they_were(
    model: VoxCPM2SlotModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = request("Narrow.", max_len=3, min_len=3)
    alone = render(model, wanted, 1)
    seat(model, 0, wanted, 1)

    def refuse(lanes: Lanes, rows: int) -> None:
        raise torch.OutOfMemoryError(f"no memory for {rows} rows")

    with monkeypatch.context() as patched:
        patched.setattr(Lanes, "_allocate", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            seat(model, 1, wanted, 2)
    assert model.lanes.rows == 1
    chunks = []
    for _ in range(3):
        model.step(1, wanted.sampler)
        chunks.append(model.decode([0])[0])
    model.release(0)
    assert np.array_equal(np.concatenate(chunks), alone.samples)


def test_a_failed_decode_moves_no_lane(model: VoxCPM2SlotModel, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = request("Decode me.", max_len=3, min_len=3)
    alone = render(model, wanted, 1)
    for slot in (0, 1):
        seat(model, slot, wanted, 1)
    model.step(2, wanted.sampler)
    vae = model._network.audio_vae
    decode = vae.decode
    with monkeypatch.context() as patched:
        patched.setattr(vae, "decode", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            model.decode([0, 1])
    assert vae.decode == decode
    chunks = [model.decode([0])[0]]
    for _ in range(2):
        model.step(2, wanted.sampler)
        chunks.append(model.decode([0])[0])
    # Lane 1 was never decoded meanwhile: three patches at once are the same samples.
    assert np.array_equal(model.decode([1])[0], alone.samples)
    assert np.array_equal(np.concatenate(chunks), alone.samples)
    for slot in (0, 1):
        model.release(slot)


def test_decode_without_new_patches_is_empty(model: VoxCPM2SlotModel) -> None:
    seat(model, 0, request(), 1)
    assert model.decode([0])[0].shape == (0,)
    model.release(0)


def test_a_taken_lane_and_a_short_lane_are_refused(model: VoxCPM2SlotModel) -> None:
    wanted = request()
    handoff = finish(model.prefill(model.plan(wanted), None, None))
    model.admit(0, handoff, 1)
    with pytest.raises(ValueError, match="lane 0"):
        model.admit(0, handoff, 1)
    model.release(0)
    model.open(2, 4)
    with pytest.raises(ValueError, match="of 4 positions"):
        model.admit(0, handoff, 1)


def test_the_context_of_a_short_prompt_ends_at_its_beginning(model: VoxCPM2SlotModel) -> None:
    """The decoder hears prompt patches only, even when the prompt has fewer than it could hear."""
    prompt = Prompt(digest="", clip=clip(0.2), text="Hm. ")
    with_reference = request(prompt=prompt, reference=Reference.of_clip(clip(2.0, 5), RATE_HZ))
    states = []
    for wanted in (request(prompt=prompt), with_reference):
        reference = None if wanted.reference is None else finish(model.encode(clip(2.0, 5), Padding.RIGHT))
        features = finish(model.encode(clip(0.2), Padding.LEFT))
        assert len(features) == 2
        states.append(finish(model.prefill(model.plan(wanted), reference, features)).decoder_state)
    for one, other in zip(*states, strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("own_threads")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_steps_and_shared_rows_give_the_bytes_of_plain_ones(
    tmp_path_factory: pytest.TempPathFactory, dtype: str
) -> None:
    """Ten rows, of which some leave: whole, in two halves, and around what is recorded."""
    folder = tmp_path_factory.mktemp("random")
    build(folder)

    def drawn(*, threads: int, cpu_graphs: bool) -> list[bytes]:
        model = load_slot_model(str(folder), device="cpu", dtype=dtype, threads=threads, cpu_graphs=cpu_graphs)
        model.open(16, 512)
        for slot in range(10):
            seat(model, slot, request("x" * (1 + 9 * slot)), slot)
        found: list[bytes] = []
        for index in range(9):
            if index == 5:
                model.release(9)
                model.release(3)
            seated = sorted(model.lanes.seats)
            found.append(model.step(12 if index < 5 else 9, SAMPLER)[seated].tobytes())
            found += [samples.tobytes() for samples in model.decode(seated)]
        for slot in seated:
            model.release(slot)
        return found

    plain = drawn(threads=1, cpu_graphs=False)
    assert drawn(threads=1, cpu_graphs=True) == plain
    assert drawn(threads=2, cpu_graphs=True) == plain
    assert drawn(threads=2, cpu_graphs=False) == plain
    if torch.backends.cpu.get_cpu_capability() == "AVX2":  # three threads were measured there alone
        assert drawn(threads=3, cpu_graphs=True) == plain


@pytest.mark.usefixtures("own_threads")
def test_wide_steps_and_decodes_are_shared_out_and_narrow_ones_are_not(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("random")
    build(folder)
    model = load_slot_model(str(folder), device="cpu", threads=2)
    model.open(8, 512)
    parts: list[tuple[str, bool, int]] = []

    def watch(name: str, owner: object, method: str) -> None:
        function = getattr(owner, method)

        def watched(rows: torch.Tensor, *rest: object) -> object:
            parts.append((name, threading.current_thread().name.startswith("rows"), len(rows)))
            return function(rows, *rest)

        monkeypatch.setattr(owner, method, watched)

    watch("draw", model._network, "draw")
    watch("decode", model._network.audio_vae, "decode")
    for slot in range(8):
        seat(model, slot, request("x"), slot)
        parts.clear()
        if slot in (2, 7):
            model.step(slot + 1, SAMPLER)
            model.decode(range(slot + 1))
            shared = [("draw", True, 4)] * 2 + [("decode", True, 4)] * 2
            assert parts == (shared if slot == 7 else [("draw", False, 3), ("decode", False, 3)])
    for slot in range(8):
        model.release(slot)


@pytest.mark.usefixtures("own_threads")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_that_was_warmed_up_records_nothing_at_its_first_steps(
    tmp_path_factory: pytest.TempPathFactory, threads: int
) -> None:
    folder = tmp_path_factory.mktemp("random")
    build(folder)
    model = load_slot_model(str(folder), device="cpu", threads=threads, warm_up_s=60.0)
    model.open(12, 512)
    assert model.lanes.rows == 1, "its own lanes are as before"
    network = model._network
    recorded = (network.feat_decoder._move, network.audio_vae._decode)
    before = [each.kept for each in recorded]
    assert all(before)
    for slot in range(12):
        seat(model, slot, request("x"), slot)
        model.step(stepped_width(slot + 1, stepped_widths(12)), SAMPLER)
        model.decode(range(slot + 1))
    assert [each.kept for each in recorded] == before
    for slot in range(12):
        model.release(slot)


def test_a_warm_up_begins_no_width_after_its_time(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path_factory.mktemp("random")
    build(folder)
    model = load_slot_model(str(folder), device="cpu", threads=1, warm_up_s=1e-9)
    with caplog.at_level("INFO"):
        model.open(16, 512)
    assert "warmed up 0 of 12 widths" in caplog.text
    assert model._network.feat_decoder._move.kept == 0
