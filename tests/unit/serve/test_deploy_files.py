"""The files people deploy with: each is read by what will read it there, or by the nearest thing to it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from tests.unit.serve.kuberay import RayService
from tests.unit.serve.promql import parts
from voxr_ray.app import build_app
from voxr_ray.config import Settings
from voxr_ray.serve.metric_names import ALL_METRICS, Metric

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.33"

EXPORTED: dict[str, Metric] = {name: metric for metric in ALL_METRICS for name in metric.exported}
RAY_LABELS = {"application", "deployment", "replica", "le"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


# ---- what is watched ----


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return found


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def rules() -> list[dict[str, Any]]:
    return [rule for group in load(DEPLOY / "prometheus-rules.yaml")["groups"] for rule in group["rules"]]


def check(expression: str, recorded: frozenset[str] = frozenset()) -> set[str]:
    """Check that every name in an expression exists and has the labels used; its metrics."""
    metrics, labels = parts(expression)
    exported = metrics - recorded
    assert metrics, f"{expression} names no metric"
    assert exported <= EXPORTED.keys(), f"{expression} names {exported - EXPORTED.keys()}, which nobody exports"
    having = RAY_LABELS.union(*(EXPORTED[name].labels for name in exported))
    assert labels <= having, f"{expression} uses labels {labels - having}, which its metrics do not have"
    for name in exported:
        # A quantile needs buckets; the rate of a gauge, or a counter without one, is nonsense.
        counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
        rated = re.search(rf"(rate|increase)\({name}\b", expression)
        assert bool(rated) == counter, f"{name} in {expression}"
    return metrics


@pytest.mark.parametrize("expression", dashboard_expressions())
def test_the_dashboard_asks_for_what_is_exported(expression: str) -> None:
    check(expression)


def test_the_dashboards_choices_come_from_what_is_exported() -> None:
    (query,) = [each["definition"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    match = re.fullmatch(r"label_values\((\w+), application\)", query)
    assert match
    assert match[1] in EXPORTED


def test_the_dashboard_shows_every_metric_and_fits_a_screen() -> None:
    shown = set().union(*(parts(each)[0] for each in dashboard_expressions()))
    left_out = {metric.name for metric in ALL_METRICS if not shown & set(metric.exported)}
    assert left_out == {
        "voxr_engine_cache_entries", "voxr_engine_cache_evictions", "voxr_engine_encodes",
        "voxr_engine_encodes_waiting", "voxr_engine_finished", "voxr_engine_renders", "voxr_engine_seatings",
        "voxr_engine_submitted", "voxr_engine_width",
    }  # fmt: skip
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or panel["description"]


def test_rules_ask_for_what_is_exported_or_recorded() -> None:
    recorded = frozenset(rule["record"] for rule in rules() if "record" in rule)
    alerts = [rule["alert"] for rule in rules() if "alert" in rule]
    assert recorded
    assert len(set(alerts)) == len(alerts) > 5
    used = set().union(*(check(rule["expr"], recorded) for rule in rules()))
    assert recorded - used <= {"voxr:occupancy:share"}
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("warning", "critical")
            labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
            assert labels <= parts(rule["expr"])[1] | {"application", "replica"}


def test_what_checks_the_expressions_finds_mistakes() -> None:
    for wrong in (
        "sum(rate(ray_voxr_engine_stepz_total[5m]))",
        "sum(ray_voxr_engine_steps)",
        "sum by (colour) (ray_voxr_engine_rows)",
        "rate(ray_voxr_engine_rows[5m])",
        "42",
    ):
        with pytest.raises(AssertionError):
            check(wrong)
    with pytest.raises(ValueError, match="do not match"):
        check("sum(ray_voxr_engine_rows")
    with pytest.raises(ValueError, match="no function"):
        check("summ(ray_voxr_engine_rows)")


def test_the_documentation_lists_every_metric() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert {metric.name for metric in ALL_METRICS if f"`{metric.name}`" not in text} == set()
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert {alert for alert in alerts if alert not in text} == set()


# ---- what is deployed ----


def check_serve_config(config: dict[str, Any]) -> Settings:
    """Read a Serve config by Ray's schema, and its application's arguments as the builder does."""
    schema = ServeDeploySchema.model_validate(copy.deepcopy(config))
    (application,) = schema.applications
    assert application.import_path == "voxr_ray:app"
    settings = Settings.load(application.args, {})
    assert settings.device != "auto", "the machine that deploys says nothing about the cluster's"
    # Composing checks the options of every deployment by Ray's own models, and loads nothing.
    build_app(settings, lambda settings: pytest.fail("no model is loaded here"))
    return settings


@pytest.mark.parametrize("path", ["serve.yaml", "deploy/serve-cluster.yaml"])
def test_serve_configs_are_read_by_ray_and_by_the_builder(path: str) -> None:
    check_serve_config(load(ROOT / path))


def test_the_comments_of_serve_yaml_are_settings_too() -> None:
    """Every ``# name: value`` that is there to be uncommented names a setting."""
    lines = (ROOT / "serve.yaml").read_text().partition("args:")[2].splitlines()
    offered = {match[1] for line in lines if (match := re.match(r"^      (?:# )?([a-z_]+): ", line))}
    assert len(offered) > 15
    assert offered <= Settings.model_fields.keys()


def test_the_cluster_file_passes_rays_own_validator() -> None:
    given = load(ROOT / "cluster.yaml")
    config = prepare_config(copy.deepcopy(given))
    validate_config(config)
    types = config["available_node_types"]
    head, gpu = types[config["head_node_type"]], types["gpu"]
    settings = check_serve_config(load(DEPLOY / "serve-cluster.yaml"))
    assert head["resources"]["GPU"] == 0
    assert head["resources"]["voices"] > settings.library_options["resources"]["voices"]
    assert settings.max_replicas is not None
    assert gpu["min_workers"] == 0
    assert gpu["max_workers"] * gpu["resources"]["GPU"] >= settings.max_replicas
    assert config["max_workers"] >= gpu["max_workers"]
    broken = copy.deepcopy(config)
    broken["max_worker"] = 8
    with pytest.raises(Exception, match="max_worker"):
        validate_config(broken)


def test_the_images_run_the_ray_that_is_installed() -> None:
    import ray

    docker = load(ROOT / "cluster.yaml")["docker"]
    images = [docker["head_image"], docker["worker_image"]]
    images += re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 3
    series = ray.__version__.rpartition(".")[0]
    for image in images:
        assert image.startswith(f"rayproject/ray:{series}."), image
    assert rayservice().spec.ray_cluster_config.ray_version.startswith(f"{series}.")


def rayservice() -> RayService:
    first, *_ = yaml.safe_load_all((DEPLOY / "rayservice.yaml").read_text())
    return RayService.model_validate(first)


def test_the_rayservice_has_kuberays_shape() -> None:
    service = rayservice()
    settings = check_serve_config(yaml.safe_load(service.spec.serve_config_v2))
    cluster = service.spec.ray_cluster_config
    assert cluster.enable_in_tree_autoscaling
    (gpu,) = cluster.worker_group_specs
    assert gpu.max_replicas == settings.max_replicas
    (container,) = gpu.template["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert gpu.template["spec"]["terminationGracePeriodSeconds"] >= settings.drain_s
    head = cluster.head_group_spec
    # KubeRay hands the value to a shell, which takes the outer quotes off.
    resources = json.loads(json.loads(head.ray_start_params["resources"].strip("'")))
    assert resources["voices"] > settings.library_options["resources"]["voices"]
    mounts = {mount["mountPath"] for mount in head.template["spec"]["containers"][0]["volumeMounts"]}
    assert settings.voices_dir in mounts
    assert str(Path(settings.api_keys_file or "").parent) in mounts


def test_its_pods_and_volumes_are_what_kubernetes_takes() -> None:
    cluster = rayservice().spec.ray_cluster_config
    for template in (cluster.head_group_spec.template, *(group.template for group in cluster.worker_group_specs)):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "checked"}} | template
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        spec = template["spec"]
        named = {volume["name"] for volume in spec["volumes"]}
        assert {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]} == named
    _, claim, monitor = yaml.safe_load_all((DEPLOY / "rayservice.yaml").read_text())
    kubernetes_validate.validate(claim, KUBERNETES, strict=True)
    claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in
              cluster.head_group_spec.template["spec"]["volumes"]}  # fmt: skip
    assert claim["metadata"]["name"] in claims
    ports = {port["name"] for port in cluster.head_group_spec.template["spec"]["containers"][0]["ports"]}
    assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports
