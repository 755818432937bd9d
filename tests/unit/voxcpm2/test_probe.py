"""The start-up probe finds what it looks for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.checkpoints import variant_config, write_checkpoint
from voxr_ray.voxcpm2 import ops
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.hub import default_checkpoint
from voxr_ray.voxcpm2.loader import load_slot_model
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.probe import row_dependent_operations


@pytest.fixture(params=["float32", "bfloat16"])
def network(request: pytest.FixtureRequest) -> VoxCPM2:
    return load_network(CheckpointFiles.find(default_checkpoint()), dtype=request.param)


def test_this_platform_holds(network: VoxCPM2) -> None:
    assert row_dependent_operations(network) == []


def test_a_linear_layer_that_sums_by_company_is_found(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A product whose order of summation changes with the number of rows, as unpadded ones do on some machines."""
    whole = ops.Linear.forward

    def forward(layer: ops.Linear, x: torch.Tensor) -> torch.Tensor:
        out = whole(layer, x)
        return out if x.shape[0] > 1 else torch.nextafter(out, torch.full_like(out, torch.inf))

    monkeypatch.setattr(ops.Linear, "forward", forward)
    folder = write_checkpoint(tmp_path / "checkpoint", variant_config("concat_condition"))
    with caplog.at_level(logging.WARNING):
        load_slot_model(str(folder), device="cpu")
    assert "depend on what runs beside it" in caplog.text
    assert "Linear base_lm.layers.0.qkv" in caplog.text


def test_torchs_silu_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading values off a position in the batch, however small the change, is seen."""
    monkeypatch.setattr("voxr_ray.voxcpm2.probe.silu", lambda x: x + torch.arange(len(x))[:, None] * 1e-3)
    network = load_network(CheckpointFiles.find(default_checkpoint()), dtype="float32")
    assert row_dependent_operations(network) == ["silu"]


def test_what_one_thread_computes_otherwise_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxr_ray.voxcpm2.probe.silu", lambda x: x * torch.get_num_threads())
    before = torch.get_num_threads()
    network = load_network(CheckpointFiles.find(default_checkpoint()), dtype="float32")
    try:
        for threads, found in ((2, ["silu"]), (1, [])):
            torch.set_num_threads(threads)
            assert row_dependent_operations(network) == found
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
