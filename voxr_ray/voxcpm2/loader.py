"""From a checkpoint folder to a model that the engine can drive."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch

from voxr_ray.errors import ConfigurationError
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, load_network
from voxr_ray.voxcpm2.graphs import GraphOptions, cuda_captures
from voxr_ray.voxcpm2.probe import row_dependent_operations
from voxr_ray.voxcpm2.settings import load_settings
from voxr_ray.voxcpm2.slot_model import Pieces, VoxCPM2SlotModel
from voxr_ray.voxcpm2.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)


def load_slot_model(
    path: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
    prefill_piece_positions: int = 64,
    encode_piece_patches: int = 2,
    cuda_graphs: bool = True,
    cpu_graphs: bool = True,
    inference_timesteps: int = 10,
    warm_up_s: float = 0.0,
) -> VoxCPM2SlotModel:
    """Load a checkpoint for the engine. Call it on the thread that will drive the model.

    Args:
        path: A checkpoint folder.
        device: A torch device, or ``auto``: the first CUDA device of this process, else the CPU.
        dtype: See :func:`load_network`.
        threads: CPU threads of this process's arithmetic; ``None`` leaves torch's own choice.
        prefill_piece_positions: Positions of a prefill piece.
        encode_piece_patches: Patches of an encode piece.
        cuda_graphs: Whether steps and decodes are captured, on a GPU.
        cpu_graphs: Whether steps and decodes are recorded, on a CPU.
        inference_timesteps: Euler steps that most requests will have; their steps are captured when the lanes open.
        warm_up_s: Seconds that opening the lanes may take on a CPU to step every width once.

    Raises:
        CheckpointError: The folder is no checkpoint.
        ConfigurationError: The device is not there.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    place = usable_device(device)
    folder = Path(path)
    files = CheckpointFiles.find(folder)
    settings = load_settings(folder)
    begun_s = time.monotonic()
    logger.info("loading %s onto %s", folder, place)
    network = load_network(files, dtype=dtype, device=place)
    logger.info("loaded it in %.1f s", time.monotonic() - begun_s)
    if dependent := row_dependent_operations(network):
        logger.warning(
            "on this platform a request's samples depend on what runs beside it, because of: %s", ", ".join(dependent)
        )
    if cpu_graphs and network.device.type == "cpu":
        network.record()
    if settings.notice:
        logger.warning("%s: %s", folder, settings.notice)
    return VoxCPM2SlotModel(
        network,
        TextTokenizer(files.tokenizer),
        pieces=Pieces(prefill_positions=prefill_piece_positions, encode_patches=encode_piece_patches),
        name=settings.name or folder.name,
        notice=settings.notice,
        graphs=_graphs(network.device, inference_timesteps) if cuda_graphs else None,
        warm_up_s=warm_up_s if network.device.type == "cpu" else 0.0,
    )


def _graphs(device: torch.device, inference_timesteps: int) -> GraphOptions | None:
    if device.type != "cuda":
        return None
    return GraphOptions(cuda_captures(device), inference_timesteps=inference_timesteps)


def usable_device(device: str) -> str:
    """A device of this machine: the one that is named, or for ``auto`` a GPU where there is one.

    Raises:
        ConfigurationError: It is not there.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as err:
        raise ConfigurationError(f"device {device!r} cannot be used: {str(err).splitlines()[0]}") from err
    return device
