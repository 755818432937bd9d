"""Guards against slow steps that no clock is needed for: operators, and one kind of work against another in one run.

A small model's step is bound by the number of operators it dispatches; absolute times say nothing on a shared machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.checkpoints import variant_config, write_checkpoint
from voxr_ray.messages import SynthRequest
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.network import EAGER_STEPS
from voxr_ray.voxcpm2.slot_model import DECODE_ROWS, VoxCPM2SlotModel

REQUEST = SynthRequest(text="Guard.")

PER_DIT_LAYER = 100
PER_LM_LAYER = 140
PER_STEP = 220
PER_DECODER_STAGE = 60
"""Operators allowed, nested ones included, some above what was counted when this was written."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VoxCPM2SlotModel:
    folder = write_checkpoint(tmp_path_factory.mktemp("guard"), variant_config("divided_heads_mup"))
    loaded = load_slot_model(str(folder), device="cpu", dtype="float32", threads=1)
    loaded.open(16, 128)
    for slot in range(16):
        work = loaded.prefill(loaded.plan(REQUEST), None, None)
        while True:
            try:
                next(work)
            except StopIteration as end:
                loaded.admit(slot, end.value, slot)
                break
    for _ in range(EAGER_STEPS + 1):
        step(loaded, 16)
    return loaded


def step(model: VoxCPM2SlotModel, width: int) -> None:
    model.step(width, REQUEST.sampler)
    model.decode(range(width))


def operators(run: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as record:
        run()
    return sum(event.count for event in record.key_averages() if event.key.startswith(("aten::", "mkldnn::")))


def test_operators_of_a_step(model: VoxCPM2SlotModel) -> None:
    network = model._network
    dit = 9 * len(network.feat_decoder.estimator.decoder.layers)
    others = sum(len(stack.layers) for stack in (network.base_lm, network.residual_lm, network.feat_encoder.encoder))
    model.step(16, REQUEST.sampler)  # noise is drawn ahead, so that not every step draws
    counted = operators(lambda: model.step(16, REQUEST.sampler))
    model.decode(range(16))
    allowed = dit * PER_DIT_LAYER + others * PER_LM_LAYER + 9 * PER_STEP
    assert counted <= allowed, f"{counted} operators, {allowed} allowed"


def test_steps_and_decodes_are_recorded(model: VoxCPM2SlotModel, caplog: pytest.LogCaptureFixture) -> None:
    """A shape is recorded once; what repeats it calls no function of the network's."""
    network = model._network
    for _ in range(EAGER_STEPS + 1):
        step(model, 16)
        step(model, 3)
    assert not caplog.records, "nothing was given up"
    called: list[str] = []
    for name, module in network.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    step(model, 16)
    for module in network.modules():
        module._forward_hooks.clear()
    asked = {"stop_proj", "stop_head", "lm_to_dit_proj", "res_to_dit_proj", "feat_decoder"}
    assert {name.partition(".")[0] for name in called} == asked
    # What an Euler step makes of tokens that do not change is made once, by the first block: of mu and condition.
    first = "feat_decoder.estimator.decoder.layers.0."
    assert [name for name in called if "decoder.layers" in name] == 2 * [f"{first}input_layernorm", f"{first}qkv"]


def test_operators_do_not_grow_with_the_rows(model: VoxCPM2SlotModel) -> None:
    few, many = (operators(lambda width=width: model.step(width, REQUEST.sampler)) for width in (4, 16))
    # Rows cost what moves noise and patches in and out, a few operators each, and no loop over the network.
    assert many - few <= 12 * 12, f"{few} operators for 4 rows, {many} for 16"


def test_operators_of_a_decode(model: VoxCPM2SlotModel) -> None:
    model.decode(range(16))
    model.step(16, REQUEST.sampler)
    stages = len(model._network.audio_vae.decoder.stages) * 16 // DECODE_ROWS
    counted = operators(lambda: model.decode(range(16)))
    assert counted <= stages * PER_DECODER_STAGE, f"{counted} operators in {stages} runs of a stage"


def test_sixteen_rows_cost_far_less_than_sixteen_steps(model: VoxCPM2SlotModel) -> None:
    """What batching is for; the processor's time of this thread, one against the other in the same run."""

    def cost(width: int, steps: int) -> float:
        times = []
        for _ in range(steps):
            start = time.thread_time()
            step(model, width)
            times.append(time.thread_time() - start)
        return min(times)

    assert cost(16, 6) < 0.6 * 16 * cost(1, 6)
    assert torch.is_inference_mode_enabled() is False
