"""Checkpoint folders in the official layout: finding their files, checking their tensors, loading a network.

A folder holds ``config.json``, ``tokenizer.json``, the model (``model.safetensors`` or ``pytorch_model.bin``) and the
AudioVAE (``audiovae.safetensors`` or ``audiovae.pth``). Pickled files are read with ``weights_only``: a file that
would run code is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from voxr_ray.errors import CheckpointError
from voxr_ray.voxcpm2.config import ModelConfig, load_config
from voxr_ray.voxcpm2.network import VoxCPM2
from voxr_ray.voxcpm2.progress import Progress
from voxr_ray.voxcpm2.weights import TensorTable, load, tensor_table

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL_FILES = ("model.safetensors", "pytorch_model.bin")
VAE_FILES = ("audiovae.safetensors", "audiovae.pth")
TOKENIZER_FILE = "tokenizer.json"

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}
"""Names of dtypes as configurations spell them."""

LISTED = 5
"""Tensors that an error names before it only counts."""


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """A folder whose files are known to be there."""

    folder: Path
    config: ModelConfig
    model: Path
    vae: Path
    tokenizer: Path

    @classmethod
    def find(cls, folder: Path) -> Self:
        """Locate the files of a checkpoint and read its configuration.

        Raises:
            CheckpointError: The folder or one of its files is missing, or the configuration is wrong.
        """
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder: a checkpoint is a folder with config.json")
        config = load_config(folder)
        tokenizer = folder / TOKENIZER_FILE
        if not tokenizer.is_file():
            raise CheckpointError(f"{folder} has no {TOKENIZER_FILE}")
        return cls(folder, config, _first(folder, MODEL_FILES), _first(folder, VAE_FILES), tokenizer)


def _first(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(f"{folder} has neither {' nor '.join(names)}")


class TensorFile:
    """One file of tensors, read one tensor at a time so that loading needs no second copy of the model.

    Args:
        path: A ``.safetensors`` file, or a pickled state dict (optionally under the key ``state_dict``).
        convert: Applied to every tensor as it is taken.
    """

    def __init__(self, path: Path, shapes: TensorTable, read: Callable[[str], Tensor]) -> None:
        self.path = path
        self.shapes = shapes
        self._read = read
        self.convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
        self.progress = Progress(f"reading {path.name}", path.stat().st_size)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The named tensor, converted. :meth:`check` has compared the shapes before."""
        tensor = self._read(name)
        converted = self.convert(tensor)
        self.progress.add(tensor.nbytes)
        return converted

    def check(self, table: TensorTable) -> None:
        """Compare names and shapes with what the configuration asks for.

        Raises:
            CheckpointError: Tensors are missing, unknown or misshapen; the first few of each are named.
        """
        misshapen = [
            f"{name} {list(self.shapes[name])} instead of {list(shape)}"
            for name, shape in table.items()
            if name in self.shapes and self.shapes[name] != shape
        ]
        faults = {
            "missing": [name for name in table if name not in self.shapes],
            "unknown": [name for name in self.shapes if name not in table],
            "misshapen": misshapen,
        }
        said = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in faults.items() if names]
        if said:
            raise CheckpointError(f"{self.path} does not fit its config.json: {'; '.join(said)}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a file of tensors for as long as the context lasts.

    Raises:
        CheckpointError: The file cannot be read as tensors and nothing but tensors.
    """
    if path.suffix == ".safetensors":
        try:
            handle = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as err:
            raise CheckpointError(f"{path} is not a readable safetensors file: {err}") from err
        with handle as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            yield TensorFile(path, shapes, opened.get_tensor)
        return
    state = _unpickle(path)
    yield TensorFile(path, {name: tuple(tensor.shape) for name, tensor in state.items()}, state.__getitem__)


def _unpickle(path: Path) -> Mapping[str, Tensor]:
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as err:
        raise CheckpointError(
            f"{path} holds more than tensors and would run code when loaded; convert it to safetensors"
        ) from err
    except (OSError, RuntimeError, EOFError, ValueError) as err:
        raise CheckpointError(f"{path} is not a readable PyTorch file: {err}") from err
    state = loaded.get("state_dict", loaded) if isinstance(loaded, Mapping) else loaded
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise CheckpointError(f"{path} is not a mapping from names to tensors")
    return state


def check_tensors(files: CheckpointFiles) -> None:
    """Compare both tensor files with the configuration, without loading what safetensors can skip.

    Raises:
        CheckpointError: A file is unreadable or does not fit.
    """
    for path, table in zip((files.model, files.vae), tensor_table(files.config), strict=True):
        with open_tensors(path) as tensors:
            tensors.check(table)


def load_network(files: CheckpointFiles, *, dtype: str = "auto", device: str = "cpu") -> VoxCPM2:
    """Load a network for inference.

    Args:
        files: A checkpoint.
        dtype: ``float32``, ``bfloat16`` or ``float16`` for everything but the AudioVAE, which is always float32;
            ``auto`` takes the configuration's on a GPU and float32 on a CPU, where it is the exact and, for all but
            large models, the faster one.
        device: A torch device.

    Raises:
        CheckpointError: A file is unreadable or does not fit, or the dtype is unknown.
    """
    on_cpu = torch.device(device).type == "cpu"
    name = dtype if dtype != "auto" else "float32" if on_cpu else files.config.dtype
    if name not in DTYPES:
        raise CheckpointError(f"dtype {name!r} is unknown: use float32, bfloat16 or float16")
    model_table, vae_table = tensor_table(files.config)
    with torch.device("meta"):
        network = VoxCPM2(files.config)
    with open_tensors(files.model) as model, open_tensors(files.vae) as vae:
        model.check(model_table)
        vae.check(vae_table)
        model.convert = lambda tensor: tensor.to(device=device, dtype=DTYPES[name])
        vae.convert = lambda tensor: tensor.to(device=device, dtype=torch.float32)
        load(network, model, vae)
    # Everything but the rope tables is on its device by now; they are made in float32 on the CPU.
    network.to(device)
    network.eval()
    network.requires_grad_(False)
    if on_cpu:
        network.pack()
    return network
