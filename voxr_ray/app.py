"""The application builder: the only place that composes the deployments and derives their options.

``serve run voxr_ray:app key=value`` and the ``import_path`` of a deployment file call :func:`app` in the process
that deploys, before anything runs. What can be wrong with settings, checkpoint and machine is found here, because a
constructor that fails later tells the operator next to nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException

from voxr_ray.config import Settings
from voxr_ray.engine.model import SlotModel
from voxr_ray.errors import ConfigurationError
from voxr_ray.serve import autoscaling
from voxr_ray.serve.access import with_keys
from voxr_ray.serve.library import Library
from voxr_ray.serve.replica import Replica, end_process
from voxr_ray.serve.router import Router
from voxr_ray.serve.routing.request_router import SamplerRouter
from voxr_ray.serve.spelling import is_installed

_log = logging.getLogger(__name__)

WARM_UP_S = 3.0
"""Seconds at most that a replica on a CPU steps widths nobody asked for yet: the default checkpoint needs one."""


class StartRefused(click.ClickException, RayServeException):
    """The application cannot start as configured; the message is one line.

    ``serve run`` prints one line and exits with 1 for the first of its bases, ``serve deploy`` shows the message of
    nothing but the second.
    """


def app(args: dict[str, Any]) -> serve.Application:
    """Build the application.

    Args:
        args: Settings by name (:class:`~voxr_ray.config.Settings`); text is read as their type.

    Raises:
        StartRefused: A setting, the checkpoint or this machine does not allow it.
    """
    # Beyond this line the CLI and the controller handle exceptions, and each understands only its own.
    try:
        settings = resolve_device(with_keys(Settings.load(args, os.environ)))
        folder = find_checkpoint(settings)
        settings = check_model(settings, folder)
        if _runs_here(settings):
            settings = choose_size(settings, folder)
            check_memory(settings, folder)
        application = build_app(settings, partial(load_checkpoint, warm_up_s=WARM_UP_S))
    except ConfigurationError as error:
        raise StartRefused(" ".join(error.message.split())) from error
    for doubt in doubts(settings) + memory_doubts(settings, folder):
        _log.warning("%s", doubt)
    return application


def build_app(settings: Settings, model_factory: Callable[[Settings], SlotModel]) -> serve.Application:
    """Compose routers, replicas and the library of voices.

    Args:
        settings: Validated settings; ``device`` names a device.
        model_factory: Loads a model in a replica; must pickle.
    """
    if settings.normalize and not is_installed():
        raise ConfigurationError("normalize needs a library: pip install 'voxr_ray[normalize]'", param="normalize")
    lifetime: dict[str, Any] = {
        "max_constructor_retry_count": 1,
        "graceful_shutdown_timeout_s": settings.drain_s,
        "health_check_period_s": settings.health_check_period_s,
        "health_check_timeout_s": settings.health_check_timeout_s,
    }
    try:
        replica = serve.deployment(
            name="Replica",
            max_ongoing_requests=settings.replica_max_ongoing,
            ray_actor_options=_actor_options(settings),
            request_router_config=_routing(settings),
            **_scale(settings),
            **lifetime,
        )(Replica)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"replica_options cannot be used: {str(error).splitlines()[0]}") from error
    router = serve.deployment(
        name="Router",
        num_replicas=settings.router_replicas,
        max_ongoing_requests=settings.router_max_ongoing,
        # A router mostly waits. Were it to reserve a share of a core, replicas that take all cores of a machine
        # would leave it unscheduled for ever, without a word.
        ray_actor_options={"num_cpus": 0},
        **lifetime,
    )(serve.ingress()(Router))
    try:
        library = serve.deployment(
            name="Library",
            num_replicas=1,
            max_ongoing_requests=settings.router_max_ongoing * settings.router_replicas,
            # It waits for files and for nobody's CPU.
            ray_actor_options={"num_cpus": 0} | settings.library_options,
            **lifetime,
        )(Library)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"library_options cannot be used: {str(error).splitlines()[0]}") from error
    replicas = replica.bind(settings, partial(model_factory, settings), end_process)
    voices = library.bind(settings, partial(find_shipped_voices, settings.model))
    application: serve.Application = router.bind(settings, replicas, voices)
    return application


def find_checkpoint(settings: Settings) -> Path:
    """The folder of the model, downloaded if need be.

    Raises:
        CheckpointError: There is no such model, or it cannot be downloaded.
    """
    from voxr_ray.voxcpm2.hub import resolve_checkpoint

    return resolve_checkpoint(settings.model)


def check_model(settings: Settings, folder: Path) -> Settings:
    """Check the checkpoint on this machine, without loading it, and complete the settings by what it says of itself.

    Its name and its own defaults stand wherever the operator chose nothing.

    Raises:
        CheckpointError: It is missing, unsafe, or does not fit its own configuration.
    """
    from voxr_ray.voxcpm2.check import check_checkpoint
    from voxr_ray.voxcpm2.settings import load_settings

    check_checkpoint(folder)
    own = load_settings(folder)
    defaults = own.defaults.model_dump(exclude_none=True)
    if own.max_part_chars is not None:
        defaults["max_part_chars"] = own.max_part_chars
    if defaults.get("normalize") and not is_installed():
        _log.warning("this checkpoint reads numbers only in words: pip install 'voxr_ray[normalize]' spells them out")
        del defaults["normalize"]
    chosen = {name: value for name, value in defaults.items() if name not in settings.model_fields_set}
    return settings.model_copy(update={"model_name": settings.model_name or own.name} | chosen)


def find_shipped_voices(model: str) -> Path | None:
    """The folder of voices that come with a model. Runs where the library of voices does."""
    from voxr_ray.voxcpm2.hub import shipped_voices

    return shipped_voices(model)


def load_checkpoint(settings: Settings, *, warm_up_s: float = 0.0) -> SlotModel:
    """Load the model. Runs in a replica, possibly on a machine that has to download it first.

    Args:
        settings: Validated, with their width and capacity.
        warm_up_s: Seconds that opening it may take on a CPU to step every width once.
    """
    from voxr_ray.voxcpm2.loader import load_slot_model, usable_device

    folder = find_checkpoint(settings)
    usable_device(settings.device)  # before its memory is asked for
    check_memory(settings, folder, free=True)
    return load_slot_model(
        str(folder),
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        prefill_piece_positions=settings.prefill_piece_positions,
        encode_piece_patches=settings.encode_piece_patches,
        cuda_graphs=settings.cuda_graphs,
        cpu_graphs=settings.cpu_graphs,
        inference_timesteps=settings.inference_timesteps,
        warm_up_s=warm_up_s,
    )


def resolve_device(settings: Settings) -> Settings:
    """Settings whose ``device`` is not ``auto``: a GPU if this machine has one."""
    if settings.device != "auto":
        return settings
    return settings.model_copy(update={"device": "cuda" if _has_gpu() else "cpu"})


def doubts(settings: Settings) -> list[str]:
    """What cannot work on this machine alone, but may on a cluster, of which nothing is known here."""
    options = _actor_options(settings)
    replicas = settings.num_replicas or max(1, settings.min_replicas or 1)
    cpus, here = replicas * options["num_cpus"], os.cpu_count() or 1
    found = []
    if cpus > here:
        found.append(
            f"{replicas} replica(s) reserve {cpus:g} CPUs and this machine has {here}: unless the cluster has more, "
            "they will wait for ever; lower threads or num_replicas"
        )
    if options["num_gpus"] and not _has_gpu():
        found.append(
            "replicas reserve a GPU and this machine has none: unless the cluster has one, they will wait for ever; "
            "set device=cpu"
        )
    return found


def choose_size(settings: Settings, folder: Path) -> Settings:
    """Settings with as many and as long slots as this machine's memory holds, wherever the operator chose neither.

    Raises:
        ConfigurationError: Not the least that may be chosen would fit.
    """
    from voxr_ray.voxcpm2.sizing import with_size

    return with_size(settings, folder)


def check_memory(settings: Settings, folder: Path, *, free: bool = False) -> None:
    """Refuse what this machine's memory cannot hold.

    Args:
        settings: With their width and capacity.
        folder: The checkpoint.
        free: Whether what others use of a GPU is missing.

    Raises:
        ConfigurationError: A replica could not start, or not serve one request.
    """
    from voxr_ray.voxcpm2 import footprint
    from voxr_ray.voxcpm2.sizing import needs_of

    has = (footprint.free_memory_of if free else footprint.memory_of)(settings.device)
    footprint.check_memory(needs_of(settings, folder), settings.device, has)


def memory_doubts(settings: Settings, folder: Path) -> list[str]:
    """What full slots need beyond this machine's memory."""
    from voxr_ray.voxcpm2.footprint import gib, memory_of
    from voxr_ray.voxcpm2.sizing import needs_of, sharers

    has, needs, replicas = memory_of(settings.device), needs_of(settings, folder), sharers(settings)
    most = replicas * needs.most
    if has is None or most <= has:
        return []
    return [
        f"{replicas} replica(s) with all slots full need {gib(most)} (each {needs}) and this machine has {gib(has)}: "
        "lower max_batch, continuous_capacity or num_replicas, unless they run elsewhere"
    ]


def _runs_here(settings: Settings) -> bool:
    """Whether replicas will run on a machine like this one, for all that is known: nobody named another."""
    pinned = {"resources", "memory", "label_selector", "accelerator_type"} & set(settings.replica_options)
    return not pinned and not os.environ.get("RAY_ADDRESS")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _actor_options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": settings.threads or 1, "num_gpus": int(settings.device == "cuda")}
    options |= settings.replica_options
    if settings.device == "cuda" and not options["num_gpus"]:
        raise ConfigurationError("device is cuda, but replica_options reserves no GPU: set num_gpus or device=cpu")
    return options


def _routing(settings: Settings) -> RequestRouterConfig:
    """Who chooses replicas in the routers' handles, and how often replicas tell them what they run."""
    options: dict[str, Any] = {
        "request_router_class": SamplerRouter,
        "request_router_kwargs": {
            "width": settings.max_batch,
            "room": settings.max_batch + settings.max_queue,
            "keep_s": settings.routing_keep_s,
        },
        "request_routing_stats_period_s": settings.routing_report_s,
        "request_routing_stats_timeout_s": settings.health_check_timeout_s,
    }
    return RequestRouterConfig(**options)


def _scale(settings: Settings) -> dict[str, Any]:
    if settings.max_replicas is None:
        return {"num_replicas": settings.num_replicas or 1}
    least = 1 if settings.min_replicas is None else settings.min_replicas
    return {
        "autoscaling_config": {
            "min_replicas": least,
            "initial_replicas": max(1, least),
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": settings.autoscaling_target,
            "upscale_delay_s": settings.upscale_delay_s,
            "downscale_delay_s": settings.downscale_delay_s,
            "look_back_period_s": settings.scaling_look_back_s,
            "policy": {"policy_function": autoscaling.POLICY},
        }
    }
