"""Settings: every source, every type, and one line for everything that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from voxr_ray.config import Settings
from voxr_ray.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]


def refusal(args: dict[str, Any], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Settings.load(args, environ or {})
    message = caught.value.message
    assert "\n" not in message
    return message


def test_defaults_are_valid_and_documented() -> None:
    settings = Settings.load({}, {})
    assert settings.model == "default"
    assert all(field.description for field in Settings.model_fields.values())


def test_text_is_read_as_the_fields_type() -> None:
    text = {
        "model": "5",
        "model_name": "null",
        "max_batch": "4",
        "batch_window_ms": "2.5",
        "retry_badcase": "False",
        "replica_options": '{"num_cpus": 2, "resources": {"tts": 1}}',
        "threads": "null",
        "graceful_shutdown_timeout_s": "none",
    }
    settings = Settings.load(text, {})
    assert settings.model == "5"
    assert settings.model_name is None
    assert settings.max_batch == 4
    assert settings.batch_window_ms == 2.5
    assert settings.retry_badcase is False
    assert settings.replica_options == {"num_cpus": 2, "resources": {"tts": 1}}
    assert settings.threads is None
    assert settings.graceful_shutdown_timeout_s is None


def test_lists_are_json_or_separated_by_commas() -> None:
    for text in ("tts-1,tts-1-hd", " tts-1 , tts-1-hd ", '["tts-1", "tts-1-hd"]'):
        assert Settings.load({"model_aliases": text}, {}).model_names == ("default", "tts-1", "tts-1-hd")
    assert Settings.load({"model_aliases": "null", "cors_origins": []}, {}).model_aliases == ()
    assert Settings.load({}, {"VOXR_CORS_ORIGINS": "*"}).cors_origins == ("*",)


def test_lists_that_would_mean_something_else_are_refused() -> None:
    assert "api_keys" in refusal({}, {"VOXR_API_KEYS": ","}), "an empty list of keys would let everybody in"
    assert "api_keys" in refusal({"api_keys": "key-one,,key-two"})
    assert "model_aliases" in refusal({"model_aliases": "tts 1"})
    assert "allowed_audio_folders" in refusal({"allowed_audio_folders": "voices"}), "relative to what?"
    assert "allowed_audio_folders" in refusal({"allowed_audio_folders": [""]})


def test_typed_values_are_taken_as_they_are() -> None:
    settings = Settings.load({"max_batch": 4, "replica_options": {"num_gpus": 0.5}, "retry_badcase": False}, {})
    assert (settings.max_batch, settings.replica_options, settings.retry_badcase) == (4, {"num_gpus": 0.5}, False)


def test_arguments_win_over_the_environment_and_that_over_defaults() -> None:
    environ = {"VOXR_MAX_BATCH": "4", "VOXR_MAX_QUEUE": "5", "VOXR_MODEL": "", "HOME": "/"}
    settings = Settings.load({"max_batch": 3}, environ)
    assert (settings.max_batch, settings.max_queue, settings.model) == (3, 5, "default")


def test_unknown_names_are_refused_with_those_alike() -> None:
    assert "'max_batchs' is no setting; is it max_batch" in refusal({"max_batchs": 4})
    assert "VOXR_MODLE is no setting; is it model" in refusal({}, {"VOXR_MODLE": "x"})
    assert "known are model," in refusal({"zzz": 1})
    assert "voxr" in refusal({}, {"VOXR_model": "x"}).lower()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch", 0),
        ("max_batch", "0"),
        ("max_batch", "many"),
        ("max_batch", 1.5),
        ("max_batch", True),
        ("max_batch", "true"),
        ("max_batch", None),
        ("max_batch", "[1]"),
        ("max_queue", -1),
        ("cfg_value", "NaN"),
        ("cfg_value", "Infinity"),
        ("cfg_value", 11),
        ("inference_timesteps", 1),
        ("batch_window_ms", -1),
        ("device", "tpu"),
        ("dtype", "int8"),
        ("model", ""),
        ("retry_badcase", "maybe"),
        ("retry_badcase", 1),
        ("replica_options", "num_cpus=1"),
        ("replica_options", [1]),
        ("max_reference_seconds", 61),
        ("request_timeout_s", 0),
        ("threads", 0),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: Any) -> None:
    assert refusal({name: value}).startswith(f"setting {name} = ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"num_replicas": 2, "max_replicas": 3}, "num_replicas fixes"),
        ({"num_replicas": 2, "min_replicas": 1}, "num_replicas fixes"),
        ({"min_replicas": 2}, "needs max_replicas"),
        ({"target_ongoing_requests": 2}, "needs max_replicas"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas = 3 is above max_replicas = 2"),
        ({"max_replicas": 2, "upscale_delay_s": 60, "downscale_delay_s": 30}, "downscale_delay_s = 30 is below"),
        ({"max_batch": 8, "max_queue": 2, "max_ongoing_requests": 9}, "max_ongoing_requests = 9 is below"),
        ({"max_batch": 8, "max_queue": 0, "max_replicas": 2, "target_ongoing_requests": 9}, "= 9 is above"),
        ({"first_chunk_patches": 3, "stream_chunk_patches": 2}, "first_chunk_patches = 3 is above"),
        ({"min_len": 9, "max_len": 10}, "max_len = 10 is below min_len + 2 = 11"),
        ({"min_reference_seconds": 5, "max_reference_seconds": 5}, "is not below"),
    ],
)
def test_settings_that_defeat_each_other_are_refused_with_both_numbers(args: dict[str, Any], words: str) -> None:
    assert words in refusal(args)


def test_limits_of_serve_stand_above_those_of_the_engine() -> None:
    for args in ({}, {"max_batch": 256, "max_queue": 10_000}, {"max_batch": 1, "max_queue": 0, "router_replicas": 4}):
        settings = Settings.load({"max_replicas": 10} | args, {})
        assert settings.replica_max_ongoing > settings.max_batch + settings.max_queue
        assert settings.router_max_ongoing * settings.router_replicas > 10 * settings.replica_max_ongoing
        assert settings.autoscaling_target <= settings.max_batch + settings.max_queue
        assert settings.drain_s > settings.request_timeout_s


@pytest.mark.parametrize(
    ("model", "name"),
    [("default", "default"), ("openbmb/VoxCPM2", "VoxCPM2"), ("/models/mine/", "mine"), ("/", "/")],
)
def test_the_served_name_comes_from_the_model(model: str, name: str) -> None:
    assert Settings.load({"model": model}, {}).served_name == name
    assert Settings.load({"model": model, "model_name": "x"}, {}).served_name == "x"


def test_defaults_of_requests_are_those_of_the_messages() -> None:
    from voxr_ray.messages import SynthRequest

    settings = Settings.load({}, {})
    request = SynthRequest(text="x")
    for name in set(SynthRequest.model_fields) & set(Settings.model_fields):
        assert getattr(request, name) == getattr(settings, name), name


def test_the_deployment_file_is_valid() -> None:
    import yaml  # type: ignore[import-untyped]
    from ray.serve.schema import ServeDeploySchema

    (application,) = ServeDeploySchema.model_validate(yaml.safe_load((ROOT / "serve.yaml").read_text())).applications
    assert application.import_path == "voxr_ray:app"
    Settings.load(application.args, {})
    # What is commented out is valid too.
    commented: dict[str, Any] = {}
    for line in (ROOT / "serve.yaml").read_text().partition("args:")[2].splitlines():
        text = line.strip().removeprefix("# ")
        if line.strip().startswith("# ") and text.split(":")[0] in Settings.model_fields:
            commented |= yaml.safe_load(text)
    assert len(commented) > 8
    Settings.load({key: value for key, value in application.args.items() if key != "num_replicas"} | commented, {})


def test_reports_never_come_faster_than_the_controller_can_pass_them_on() -> None:
    def period_s(**args: Any) -> float:
        return Settings.load(args, {}).routing_report_s

    assert period_s() == period_s(num_replicas=25) == 0.25
    assert period_s(num_replicas=100) == period_s(max_replicas=100) == 1.0
    assert period_s(num_replicas=1000) == 10.0
    assert period_s(num_replicas=100, routing_report_period_s="0.5") == 0.5
