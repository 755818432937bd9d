"""KubeRay's RayService as pydantic models: the fields of its v1 API that a RayCluster may be written with.

The custom resource's own schema is more than a megabyte, most of it pod templates. Those are checked against
Kubernetes' schema instead.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

Template = dict[str, Any]


class Strict(BaseModel):
    """Knows every field it may have."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class AutoscalerOptions(Strict):
    resources: dict[str, dict[str, str]] | None = None
    image: str | None = None
    image_pull_policy: str | None = None
    env: list[dict[str, Any]] = []
    env_from: list[dict[str, Any]] = []
    volume_mounts: list[dict[str, Any]] = []
    security_context: dict[str, Any] | None = None
    idle_timeout_seconds: int | None = None
    upscaling_mode: Literal["Default", "Aggressive", "Conservative"] | None = None


class HeadGroup(Strict):
    service_type: str | None = None
    head_service: dict[str, Any] | None = None
    enable_ingress: bool | None = None
    ray_start_params: dict[str, str]
    template: Template


class WorkerGroup(Strict):
    group_name: Annotated[str, Field(pattern="^[a-z0-9-]+$")]
    replicas: Annotated[int, Field(ge=0)] = 0
    min_replicas: Annotated[int, Field(ge=0)]
    max_replicas: Annotated[int, Field(ge=0)]
    num_of_hosts: Annotated[int, Field(ge=1)] = 1
    ray_start_params: dict[str, str]
    template: Template

    @model_validator(mode="after")
    def _within_bounds(self) -> WorkerGroup:
        if not self.min_replicas <= self.replicas <= self.max_replicas:
            raise ValueError("replicas is not between minReplicas and maxReplicas")
        return self


class RayCluster(Strict):
    ray_version: str
    enable_in_tree_autoscaling: bool = False
    autoscaler_options: AutoscalerOptions | None = None
    head_service_annotations: dict[str, str] = {}
    head_group_spec: HeadGroup
    worker_group_specs: list[WorkerGroup]
    suspend: bool | None = None


class Spec(Strict):
    serve_config_v2: str
    ray_cluster_config: RayCluster
    serve_service: dict[str, Any] | None = None


class Metadata(Strict):
    name: Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=41)]
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RayService(Strict):
    api_version: Literal["ray.io/v1"]
    kind: Literal["RayService"]
    metadata: Metadata
    spec: Spec
