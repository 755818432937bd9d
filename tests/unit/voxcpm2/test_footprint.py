"""What a replica needs of memory: the formula against what is really allocated, and the refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.checkpoints import variant_config, write_checkpoint
from voxr_ray.errors import ConfigurationError
from voxr_ray.voxcpm2 import footprint as module
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.footprint import DECODED_PATCHES, Footprint, check_memory, footprint, memory_of
from voxr_ray.voxcpm2.hub import default_checkpoint
from voxr_ray.voxcpm2.lanes import Lanes, Seat
from voxr_ray.voxcpm2.noise import DRAWN_AHEAD, NoiseStream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint", variant_config("concat_condition"))


@pytest.mark.parametrize("capacity", [100, 1 << 20])
def test_a_lane_is_as_large_as_the_caches_of_one(folder: Path, capacity: int) -> None:
    files = CheckpointFiles.find(folder)
    needs = footprint(folder, device="cpu", dtype="auto", width=8, capacity=capacity)
    most = min(capacity, files.config.lm_config.max_position_embeddings)
    caches = Lanes(load_network(files), 8, most).tensors.caches()
    assert needs.lane == sum(cache.nbytes for cache in caches)


@pytest.mark.parametrize("variant", ["concat_condition", "default"])
def test_a_row_is_as_large_as_what_the_lanes_hold_of_it(tmp_path: Path, variant: str) -> None:
    given = variant_config(variant) if variant != "default" else None
    place = default_checkpoint() if given is None else write_checkpoint(tmp_path / "checkpoint", given)
    network = load_network(CheckpointFiles.find(place))
    seat = Seat(NoiseStream(0, feat_dim=network.config.feat_dim, patch_size=network.config.patch_size), 0)
    ahead = seat.noise.next().nbytes * DRAWN_AHEAD
    rows = Lanes(network, 8, 64).tensors.others()
    pending = DECODED_PATCHES * network.config.patch_size * network.config.feat_dim * 4
    needs = footprint(place, device="cpu", dtype="auto", width=8, capacity=64)
    assert needs.row == sum(row.nbytes for row in rows) + ahead + pending


@pytest.mark.parametrize(("width", "most"), [(1, 1), (2, 3), (3, 5), (8, 12), (12, 20), (64, 96)])
def test_lanes_that_widen_are_there_twice_meanwhile(folder: Path, width: int, most: int) -> None:
    """Old and new, where all of both is real; captured steps keep lanes where they are."""
    wanted = {"device": "cuda", "dtype": "auto", "width": width, "capacity": 100}
    grown = footprint(folder, **wanted)
    assert grown.most_lanes == most
    whole = footprint(folder, **wanted, graphs=True)
    assert whole.most_lanes == width
    assert whole.least == whole.most
    assert whole.graphs > grown.graphs == 0


def test_parts_make_the_whole() -> None:
    needs = Footprint(weights=1000, lane=100, lanes=4, row=10, kept=5, work=2, process=300, graphs=7, most_lanes=6)
    assert needs.slot == 115
    assert needs.most == 1000 + 6 * 110 + 4 * 5 + 4 * 2 + 300 + 7 + 100
    assert needs.least == 1000 + 115 + 2 + 300 + 7 + 100


def test_weights_are_as_large_as_the_files_in_the_type_they_are_kept_in(folder: Path) -> None:
    files = CheckpointFiles.find(folder)
    stored = 0
    for path in (files.model, files.vae):
        from voxr_ray.voxcpm2.checkpoint import open_tensors

        with open_tensors(path) as tensors:
            stored += sum(torch.Size(shape).numel() for shape in tensors.shapes.values())
    whole = footprint(folder, device="cpu", dtype="float32", width=1, capacity=64)
    assert whole.weights == 4 * stored
    half = footprint(folder, device="cuda", dtype="bfloat16", width=1, capacity=64)
    assert whole.weights / 2 < half.weights < whole.weights
    assert half.lane == whole.lane / 2


def test_a_machine_has_memory() -> None:
    has = memory_of("cpu")
    assert has is not None
    assert 2**28 < has < 2**50


def test_a_limit_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(module, "_CGROUP_LIMITS", (str(tmp_path / "none"), str(limit)))
    limit.write_text("1048576\n")
    assert memory_of("cpu") == 2**20
    limit.write_text("max\n")
    assert memory_of("cpu") != 2**20


def test_the_refusal_has_the_numbers() -> None:
    needs = Footprint(weights=5 * 2**30, lane=2**30, lanes=16)
    check_memory(needs, "cpu", 7 * 2**30)
    check_memory(needs, "cpu", None)
    with pytest.raises(ConfigurationError) as caught:
        check_memory(needs, "cpu", 7 * 2**30 - 1)
    words = ("at least 7.0 GiB", "5.0 GiB for weights", "1.0 GiB for each of 16 slots", "continuous_capacity")
    assert all(word in str(caught.value) for word in words)
