"""The builder: derived options, and one line where it refuses."""

from __future__ import annotations

import json
import os
import pickle
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from ray.serve.exceptions import RayServeException

from tests.checkpoints import variant_config, write_checkpoint
from tests.fakes.slot_model import make_fake_model
from voxr_ray import app as app_builder
from voxr_ray.app import StartRefused, build_app, check_model, doubts, load_checkpoint
from voxr_ray.config import Settings
from voxr_ray.errors import CheckpointError, ConfigurationError
from voxr_ray.serve import autoscaling


def factory(settings: Settings, **arguments: Any) -> Any:
    return make_fake_model(**arguments)


def deployments(args: dict[str, Any]) -> dict[str, Any]:
    """The options of the deployments that settings lead to, by name."""
    application: Any = build_app(Settings.load({"device": "cpu"} | args, {}), partial(factory))
    router = application._bound_deployment
    others = [argument._bound_deployment for argument in router.init_args[1:]]
    return {each.name: each for each in (router, *others)}


def test_limits_and_times_are_derived() -> None:
    built = deployments({"max_batch": 8, "max_queue": 4, "request_timeout_s": 60})
    assert set(built) == {"Router", "Replica", "Library"}
    for deployment in built.values():
        config = deployment._deployment_config
        assert config.graceful_shutdown_timeout_s == 70
        assert config.max_constructor_retry_count == 1
        assert config.max_ongoing_requests > 12
    assert built["Router"]._deployment_config.max_ongoing_requests >= 1000


def test_replicas_are_chosen_by_sampler() -> None:
    config = deployments({"max_batch": 8, "max_queue": 4})["Replica"]._deployment_config.request_router_config
    assert config.get_request_router_class().__name__ == "SamplerRouter"
    assert config.request_router_kwargs == {"width": 8, "room": 12, "keep_s": 10.0}
    assert config.request_routing_stats_period_s == 0.25


def test_a_device_becomes_actor_options() -> None:
    def options(**args: Any) -> dict[str, Any]:
        chosen: dict[str, Any] = deployments(args)["Replica"].ray_actor_options
        return {key: chosen[key] for key in ("num_cpus", "num_gpus") if key in chosen}

    assert options() == {"num_cpus": 1, "num_gpus": 0}
    assert options(threads=4) == {"num_cpus": 4, "num_gpus": 0}
    assert options(device="cuda") == {"num_cpus": 1, "num_gpus": 1}
    assert options(device="cuda", replica_options={"num_gpus": 0.5}) == {"num_cpus": 1, "num_gpus": 0.5}


def test_a_router_reserves_nothing_that_replicas_may_need() -> None:
    assert deployments({"threads": os.cpu_count()})["Router"].ray_actor_options["num_cpus"] == 0


def test_what_this_machine_alone_cannot_hold_is_said() -> None:
    """It may be the head of a cluster that can, so it is no refusal."""
    cores = os.cpu_count() or 1
    assert doubts(Settings.load({"device": "cpu"}, {})) == []
    assert doubts(Settings.load({"device": "cpu", "threads": cores}, {})) == []
    (cpus,) = doubts(Settings.load({"device": "cpu", "threads": cores, "num_replicas": 2}, {}))
    assert f"reserve {2 * cores} CPUs and this machine has {cores}" in cpus
    (gpu,) = doubts(Settings.load({"device": "cuda"}, {}))
    assert "this machine has none" in gpu


def test_replicas_are_fixed_or_scale() -> None:
    assert deployments({})["Replica"].num_replicas == 1
    assert deployments({"num_replicas": 3})["Replica"].num_replicas == 3
    scaled = deployments({"min_replicas": 0, "max_replicas": 4, "max_batch": 8})["Replica"]
    config = scaled._deployment_config.autoscaling_config
    assert (config.min_replicas, config.max_replicas, config.target_ongoing_requests) == (0, 4, 6.0)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"nonsense": "1"}, "'nonsense' is no setting"),
        ({"max_batch": "0"}, "max_batch"),
        ({"device": "cuda", "replica_options": '{"num_gpus": 0}'}, "reserves no GPU"),
        ({"device": "cpu", "model": "/no/such/folder"}, "/no/such/folder"),
        ({"device": "cpu", "replica_options": '{"num_gpu": 1}'}, "num_gpu"),
        ({"device": "cpu", "replica_options": '{"num_cpus": -1}'}, "replica_options cannot be used"),
    ],
)
def test_a_refusal_is_one_line_for_both_commands(
    args: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("VOXR_")]:
        monkeypatch.delenv(name)
    with pytest.raises(StartRefused) as caught:
        app_builder(args)
    assert isinstance(caught.value, click.ClickException)
    assert isinstance(caught.value, RayServeException)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_default_application_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXR_DEVICE", "cpu")
    router = app_builder({})._bound_deployment
    assert router.init_args[0].device == "cpu"
    assert pickle.loads(pickle.dumps(load_checkpoint)) is load_checkpoint  # noqa: S301


def test_the_library_is_one_and_can_be_pinned() -> None:
    library = deployments({"library_options": {"resources": {"voices": 0.01}}})["Library"]
    assert library.num_replicas == 1
    assert library.ray_actor_options["resources"] == {"voices": 0.01}
    with pytest.raises(ConfigurationError, match="library_options cannot be used"):
        deployments({"library_options": {"num_cpus": -1}})


def test_a_checkpoints_own_defaults_stand_where_the_operator_chose_nothing(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", variant_config("concat_condition"))
    defaults = {"cfg_value": 3.0, "retry_badcase_ratio_threshold": 1.5}
    own = {"name": "small", "defaults": defaults, "max_part_chars": 70}
    (folder / "voxr.json").write_text(json.dumps(own))
    untouched = check_model(Settings.load({"model": str(folder), "device": "cpu"}, {}), folder)
    assert (untouched.served_name, untouched.cfg_value, untouched.retry_badcase_ratio_threshold) == ("small", 3.0, 1.5)
    assert untouched.inference_timesteps == Settings().inference_timesteps
    assert untouched.max_part_chars == 70
    chosen = check_model(Settings.load({"model": str(folder), "device": "cpu", "cfg_value": "1.5"}, {}), folder)
    assert (chosen.cfg_value, chosen.retry_badcase_ratio_threshold) == (1.5, 1.5)


@pytest.mark.parametrize(
    "content", ["{", '{"defaults": {"cfg_value": 99}}', '{"defaults": {"speed": 2}}', '{"nonsense": 1}']
)
def test_wrong_settings_of_a_checkpoint_are_refused_in_one_line(tmp_path: Path, content: str) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", variant_config("concat_condition"))
    (folder / "voxr.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"voxr\.json") as caught:
        check_model(Settings.load({"model": str(folder), "device": "cpu"}, {}), folder)
    assert "\n" not in str(caught.value)


def test_the_autoscaler_aims_at_a_batch_nearly_full_and_uses_the_projects_policy() -> None:
    scaled = deployments({"max_replicas": 8, "max_batch": 32, "upscale_delay_s": 5, "scaling_look_back_s": 15})
    config = scaled["Replica"]._deployment_config.autoscaling_config
    assert config.target_ongoing_requests == 24
    assert config.target_ongoing_requests < scaled["Replica"]._deployment_config.max_ongoing_requests
    assert (config.upscale_delay_s, config.downscale_delay_s, config.look_back_period_s) == (5, 600, 15)
    assert config.policy.policy_function == autoscaling.POLICY
    assert deployments({})["Replica"]._deployment_config.autoscaling_config is None


def test_replicas_load_as_set_and_warm_up_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("voxr_ray.voxcpm2.loader.load_slot_model", lambda path, **given: asked.append(given))
    module = import_module("voxr_ray.app")
    monkeypatch.setattr(module, "build_app", lambda settings, factory: factory(settings))
    module.app({"device": "cpu", "cpu_graphs": "false", "threads": "2"})
    load_checkpoint(Settings.load({"device": "cpu"}, {}))
    chosen = [(each["cpu_graphs"], each["threads"], each["warm_up_s"]) for each in asked]
    assert chosen == [(False, 2, module.WARM_UP_S), (True, None, 0.0)]


def test_spelling_out_needs_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployments({"normalize": True})
    monkeypatch.setattr(import_module("voxr_ray.app"), "is_installed", lambda: False)
    with pytest.raises(ConfigurationError, match=r"voxr_ray\[normalize\]"):
        deployments({"normalize": True})
    folder = write_checkpoint(tmp_path / "checkpoint", variant_config("concat_condition"))
    (folder / "voxr.json").write_text(json.dumps({"defaults": {"normalize": True}}))
    wished = Settings.load({"model": str(folder), "device": "cpu"}, {})
    assert check_model(wished, folder).normalize is False
    monkeypatch.undo()
    assert check_model(wished, folder).normalize is True


class TestMemory:
    """V7: what cannot fit is refused before anything is deployed, with the numbers."""

    @pytest.fixture(autouse=True)
    def small_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from voxr_ray.voxcpm2 import footprint

        monkeypatch.setattr(footprint, "memory_of", lambda device: 660 * 2**20)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        for name in [name for name in os.environ if name.startswith("VOXR_")]:
            monkeypatch.delenv(name)

    def test_a_model_that_cannot_fit_is_refused_in_one_line(self) -> None:
        with pytest.raises(StartRefused, match="too little memory") as caught:
            app_builder({"device": "cpu", "continuous_capacity": "32768"})
        assert "of 0.6 GiB" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_replicas_that_run_elsewhere_are_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pinned = {"device": "cpu", "continuous_capacity": "32768", "replica_options": '{"resources": {"large": 1}}'}
        assert app_builder(pinned)._bound_deployment.name == "Router"
        monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
        assert app_builder({"device": "cpu", "continuous_capacity": "32768"})._bound_deployment.name == "Router"

    def test_a_replica_refuses_to_load_what_its_own_machine_cannot_hold(self) -> None:
        with pytest.raises(ConfigurationError, match="too little memory"):
            load_checkpoint(Settings.load({"device": "cpu", "continuous_capacity": 32768}, {}))

    def test_slots_that_cannot_all_fill_are_a_doubt(self, caplog: pytest.LogCaptureFixture) -> None:
        app_builder({"device": "cpu", "continuous_capacity": "512", "max_batch": "256"})
        assert "with all slots full need" in caplog.text
