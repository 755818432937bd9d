"""The official package's outputs on the golden checkpoint, case by case."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.golden import HORIZON_PATCHES, HORIZON_SAMPLES
from tests.parity.conftest import Case, load_case
from tests.rendering import features, finish, render, seat
from voxr_ray.engine.model import Padding
from voxr_ray.messages import Sampler
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.slot_model import VoxCPM2SlotModel

CASES = ("zero_shot_a", "zero_shot_cfg", "zero_shot_zh", "reference", "continuation", "combined")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, reference_data: Path) -> Case:
    return load_case(reference_data / "cases", request.param)


def latents(model: VoxCPM2SlotModel, case: Case) -> np.ndarray:
    """The patches of a free-running take, (patches, patch_size, feat_dim)."""
    seat(model, 0, case.request, case.seed)
    for _ in case.feat:
        model.step(1, case.request.sampler)
    drawn = torch.stack(model.lanes.seats[0].pending).numpy()
    model.release(0)
    return drawn


def test_tokens_and_positions(golden_model: VoxCPM2SlotModel, case: Case) -> None:
    plan = golden_model.plan(case.request)
    assert list(plan.token_ids) == case.tokens
    reference = features(golden_model, case.request.reference, Padding.RIGHT)
    prompt = features(golden_model, case.request.prompt, Padding.LEFT)
    handoff = finish(golden_model.prefill(plan, reference, prompt))
    assert handoff.positions == plan.seq_len


def test_audio_and_patch_counts(golden_model: VoxCPM2SlotModel, case: Case) -> None:
    take = render(golden_model, case.request, case.seed)
    assert len(take.chunks) == len(case.feat)
    assert take.samples.shape == case.wav.shape
    assert np.abs(take.samples - case.wav)[:HORIZON_SAMPLES].max() <= 1e-4


def test_free_running_latents(golden_model: VoxCPM2SlotModel, case: Case) -> None:
    error = np.abs(latents(golden_model, case) - case.feat).max(axis=(1, 2))
    assert error[:5].max() <= 1e-4
    assert error[:HORIZON_PATCHES].max() <= 1e-2


def test_teacher_forced_latents(golden_model: VoxCPM2SlotModel, case: Case) -> None:
    """Each patch drawn behind the official ones: nothing can hide behind the loop's chaos."""
    seat(golden_model, 0, case.request, case.seed)
    seated = golden_model.lanes.seats[0]
    forced = iter(torch.from_numpy(case.feat))
    draw = golden_model._network.draw
    errors: list[float] = []

    def draw_official(*arguments: torch.Tensor) -> torch.Tensor:
        drawn, official = draw(*arguments), next(forced)
        errors.append(float((drawn[0] - official).abs().max()))
        return official[None].clone()

    golden_model._network.draw = draw_official  # type: ignore[method-assign, assignment]
    try:
        for _ in case.feat:
            golden_model.step(1, case.request.sampler)
    finally:
        golden_model._network.draw = draw  # type: ignore[method-assign]
    assert len(errors) == len(case.feat) == len(seated.pending)
    assert max(errors) <= 1e-4


def test_one_euler_step_returns_the_noise(golden_model: VoxCPM2SlotModel, reference_data: Path) -> None:
    """The only step there is has zero velocity; the golden latents are the drawn noise, bit for bit."""
    case = load_case_without_sampler(reference_data)
    seat(golden_model, 0, case.request, case.seed)
    for _ in case.feat:
        golden_model.step(1, Sampler(case.request.cfg_value, 1))
    drawn = torch.stack(golden_model.lanes.seats[0].pending).numpy()
    assert np.array_equal(drawn, case.feat)


def load_case_without_sampler(reference_data: Path) -> Case:
    """The one-step case, whose number of steps a request refuses."""
    folder = reference_data / "cases"
    arrays = np.load(folder / "zero_shot_steps1.npz")
    other = load_case(folder, "zero_shot_a")
    request = other.request.model_copy(update={"text": "Numbers one two three."})
    return Case(request, 5, [], arrays["feat"], arrays["wav"])


@pytest.mark.parametrize("name", ["zero_shot_a", "zero_shot_cfg", "reference"])
@pytest.mark.parametrize("cut", [1, 2, 5, None])
def test_decoder(golden_network: VoxCPM2, reference_data: Path, name: str, cut: int | None) -> None:
    """Official latents through our decoder, in one shot and in chunks, give the official samples."""
    case = load_case(reference_data / "cases", name)
    decoder = golden_network.audio_vae
    patches = torch.from_numpy(case.feat)
    state = decoder.decoder.new_state(1)
    pieces = []
    with torch.inference_mode():
        for part in patches.split(cut or len(patches)):
            audio, state = decoder.decode(part.flatten(0, 1)[None], state)
            pieces.append(audio[0])
    assert np.abs(torch.cat(pieces).numpy() - case.wav).max() <= 1e-5


def test_all_cases_in_one_batch(golden_model: VoxCPM2SlotModel, reference_data: Path) -> None:
    """B1: seven requests of all modes seated together, at scattered slots, give their official audio."""
    names = ("zero_shot_a", "zero_shot_zh", "reference", "continuation", "combined")
    cases = {slot: load_case(reference_data / "cases", name) for slot, name in zip((0, 2, 3, 5, 6), names, strict=True)}
    for slot, case in cases.items():
        seat(golden_model, slot, case.request, case.seed)
    audio: dict[int, list[np.ndarray]] = {slot: [] for slot in cases}
    for _ in range(max(len(case.feat) for case in cases.values())):
        golden_model.step(8, Sampler(2.0, 10))
        for slot, samples in zip(cases, golden_model.decode(list(cases)), strict=True):
            audio[slot].append(samples)
    for slot, case in cases.items():
        together = np.concatenate(audio[slot])[: len(case.wav)]
        assert np.abs(together - case.wav)[:HORIZON_SAMPLES].max() <= 1e-4


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 8])
def test_the_stepped_width_changes_nothing(golden_model: VoxCPM2SlotModel, reference_data: Path, width: int) -> None:
    """B7: a row alone in a step of any width, padded with free lanes, gives the same bits."""
    case = load_case(reference_data / "cases", "reference")
    audio = []
    for lanes in (1, width):
        if lanes > 1:  # what is stepped has to be allocated: a neighbour was there once
            seat(golden_model, lanes - 1, case.request, 1)
            golden_model.release(lanes - 1)
        seat(golden_model, 0, case.request, case.seed)
        chunks = []
        for _ in case.feat:
            golden_model.step(lanes, case.request.sampler)
            chunks.extend(golden_model.decode([0]))
        golden_model.release(0)
        audio.append(np.concatenate(chunks))
    assert np.array_equal(audio[0], audio[1])


def test_a_request_gets_the_sampler_it_asked_for(golden_model: VoxCPM2SlotModel, reference_data: Path) -> None:
    """T2: guidance and steps are used at every patch, and a batch that ran another sampler leaves no trace."""
    case = load_case(reference_data / "cases", "zero_shot_cfg")
    other = load_case(reference_data / "cases", "zero_shot_a")
    assert case.request.sampler != other.request.sampler
    first = render(golden_model, case.request, case.seed)
    render(golden_model, other.request, other.seed)
    again = render(golden_model, case.request, case.seed)
    assert np.array_equal(first.samples, again.samples)
    for change in ({"cfg_value": 1.4}, {"inference_timesteps": 7}):
        changed = render(golden_model, case.request.model_copy(update=change), case.seed)
        count = min(len(changed.chunks), len(first.chunks))
        assert all(not np.array_equal(changed.chunks[i], first.chunks[i]) for i in range(count))
