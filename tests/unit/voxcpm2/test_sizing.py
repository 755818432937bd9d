"""Width and capacity chosen from memory that the tests say there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoints import configuration
from tests.checkpoints import variant_config, write_checkpoint
from voxr_ray.config import Settings
from voxr_ray.errors import ConfigurationError
from voxr_ray.voxcpm2 import footprint, sizing
from voxr_ray.voxcpm2.config import ModelConfig
from voxr_ray.voxcpm2.footprint import Sizes
from voxr_ray.voxcpm2.sizing import USED, Size, choose_size, needs_of, with_size

GIB = 2**30


def sizes(name: str, device: str) -> Sizes:
    return Sizes.of(ModelConfig.model_validate(configuration(name)), device=device, dtype="auto")


@pytest.fixture(scope="module")
def published() -> Sizes:
    return sizes("2b", "cuda")


def choose(of: Sizes, device: str, has: float, **chosen: Any) -> Size:
    wished = {"width": None, "capacity": None, "graphs": device == "cuda"} | chosen
    return choose_size(of, device=device, has=int(has * GIB), **wished)


@pytest.mark.parametrize("has", [4, 8, 24, 512])
def test_a_cpu_keeps_its_defaults_while_memory_allows(has: float) -> None:
    assert choose(sizes("default", "cpu"), "cpu", has) == Size(16, 4096)


@pytest.mark.parametrize("has", [24, 40, 80, 140])
def test_a_gpu_gets_sixty_four_slots_of_the_published_model(published: Sizes, has: float) -> None:
    assert choose(published, "cuda", has) == Size(64, 4096)


def test_less_memory_never_gives_more_slots_and_what_is_chosen_always_fits(published: Sizes) -> None:
    before = Size(1, 1)
    for tenths in range(80, 250, 4):
        size = choose(published, "cuda", tenths / 10)
        assert published.at(size.width, size.capacity, True).most <= USED * tenths / 10 * GIB
        assert (size.capacity, size.width) >= (before.capacity, before.width)
        before = size
    assert before == Size(64, 4096)


def test_slots_get_shorter_before_there_are_few(published: Sizes) -> None:
    cpu = sizes("2b", "cpu")
    found = {choose(cpu, "cpu", tenths / 10) for tenths in range(112, 144)}
    assert {size.capacity for size in found} == {1024, 2048, 4096}
    assert all(size.width >= 4 for size in found if size.capacity > 1024)


def test_what_the_operator_chose_stands(published: Sizes) -> None:
    assert choose(published, "cuda", 140, width=96) == Size(96, 4096)
    assert choose(published, "cuda", 24, capacity=16384).capacity == 16384
    assert choose(published, "cuda", 24, capacity=16384).width < 64


def test_the_refusal_has_the_numbers(published: Sizes) -> None:
    with pytest.raises(ConfigurationError) as caught:
        choose(published, "cuda", 6)
    for word in ("4.6 GiB for weights", "each of 1 slots", "5.4 GiB of 6.0 GiB", "max_batch"):
        assert word in str(caught.value)


class TestSettings:
    """What becomes of settings in the builder."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_checkpoint(tmp_path / "checkpoint", variant_config("concat_condition"))

    def sized(self, monkeypatch: pytest.MonkeyPatch, folder: Path, has: float, **given: Any) -> Settings:
        monkeypatch.setattr(footprint, "memory_of", lambda device: int(has * GIB))
        monkeypatch.setattr(footprint, "_gpus", lambda: [int(80 * GIB), int(has * GIB)])
        return with_size(Settings.load({"device": "cpu"} | given, {}), folder)

    def test_unset_is_chosen_and_follows_to_what_depends_on_it(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        small = self.sized(monkeypatch, folder, 24, device="cuda", max_replicas=2)
        assert (small.max_batch, small.continuous_capacity) == (64, 4096)
        assert small.replica_max_ongoing > small.max_batch + small.max_queue
        assert small.autoscaling_target == 48

    def test_set_stays(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        given = {"max_batch": 3, "continuous_capacity": 100}
        kept = self.sized(monkeypatch, folder, 0.001, **given)
        assert (kept.max_batch, kept.continuous_capacity) == (3, 100)

    def test_a_machine_without_the_device_leaves_the_defaults(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        monkeypatch.setattr(footprint, "_gpus", list)
        kept = with_size(Settings.load({"device": "cuda"}, {}), folder)
        assert (kept.max_batch, kept.continuous_capacity) == (16, 4096)
        assert "max_batch" not in kept.model_fields_set

    def test_replicas_share_a_machine_as_far_as_it_has_cpus_for_them(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        monkeypatch.setattr(sizing.os, "cpu_count", lambda: 4)
        alone = self.sized(monkeypatch, folder, 0.7)
        assert alone.max_batch == 16
        needs = needs_of(alone, folder)
        has = needs.most / USED / GIB * 1.01
        assert self.sized(monkeypatch, folder, has).max_batch == 16
        assert self.sized(monkeypatch, folder, 4 * has, num_replicas=100).max_batch == 16
        assert self.sized(monkeypatch, folder, 2 * has, num_replicas=100, threads=2).max_batch == 16

    def test_too_many_for_one_machine_are_sized_as_if_they_were_alone(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        monkeypatch.setattr(sizing.os, "cpu_count", lambda: 64)
        assert self.sized(monkeypatch, folder, 1, num_replicas=64).max_batch == 16

    def test_half_a_gpu_has_half_its_memory(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        given = {"device": "cuda", "continuous_capacity": 64}
        whole = needs_of(Settings.load(given | {"max_batch": 64}, {}), folder).most / USED / GIB + 1e-6
        assert self.sized(monkeypatch, folder, whole, **given).max_batch == 64
        halved = self.sized(monkeypatch, folder, whole * 1.98, **given, replica_options={"num_gpus": 0.5})
        assert halved.max_batch < 64

    def test_a_width_that_contradicts_what_was_set_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        with pytest.raises(ConfigurationError, match="max_batch was not set and 64 slots fit"):
            self.sized(monkeypatch, folder, 24, device="cuda", max_ongoing_requests=100)
