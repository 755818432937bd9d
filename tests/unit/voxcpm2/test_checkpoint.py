"""Checkpoint files: what is found, what is refused, and that refusals name the tensor."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.checkpoints import changed_config, variant_config, write_checkpoint
from voxr_ray.errors import CheckpointError
from voxr_ray.voxcpm2.check import check_checkpoint
from voxr_ray.voxcpm2.checkpoint import CheckpointFiles, check_tensors, load_network
from voxr_ray.voxcpm2.hub import default_checkpoint

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "good", variant_config("concat_condition"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "checkpoint"))


def rewrite(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)


def as_pickle(path: Path, name: str, *, wrap: bool) -> None:
    """Replace a safetensors file by a pickled state dict."""
    tensors = safetensors.torch.load_file(path)
    torch.save({"state_dict": tensors} if wrap else tensors, path.with_name(name))
    path.unlink()


def test_the_default_checkpoint_is_whole_and_small() -> None:
    check_checkpoint(default_checkpoint())
    assert sum(file.stat().st_size for file in default_checkpoint().rglob("*")) <= 20_000_000


@pytest.mark.parametrize("wrap", [False, True])
def test_pickled_weights_load_like_safetensors(good: Path, folder: Path, wrap: bool) -> None:
    as_pickle(folder / "model.safetensors", "pytorch_model.bin", wrap=wrap)
    as_pickle(folder / "audiovae.safetensors", "audiovae.pth", wrap=wrap)
    check_checkpoint(folder)
    networks = [load_network(CheckpointFiles.find(path)) for path in (good, folder)]
    for one, other in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors", "audiovae.safetensors"])
def test_a_missing_file_is_named(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=file):
        check_checkpoint(folder)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        CheckpointFiles.find(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("model.safetensors", "base_lm.layers.1.self_attn.k_proj.weight"),
        ("model.safetensors", "stop_head.weight"),
        ("audiovae.safetensors", "encoder.fc_logvar.weight_v"),
        ("audiovae.safetensors", "decoder.sr_cond_model.2.cond_embed.weight"),
    ],
)
def test_missing_unknown_and_misshapen_tensors_are_named(folder: Path, file: str, name: str) -> None:
    path = folder / file
    whole = path.read_bytes()
    rewrite(path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"1 missing: {name}"):
        check_checkpoint(folder)
    path.write_bytes(whole)
    rewrite(path, lambda tensors: tensors.update({"spare.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"1 unknown: spare\.weight"):
        check_checkpoint(folder)
    path.write_bytes(whole)
    rewrite(path, lambda tensors: tensors.update({name: torch.zeros(3, 3)}))
    with pytest.raises(CheckpointError, match=rf"1 misshapen: {name} \[3, 3\] instead of"):
        load_network(CheckpointFiles.find(folder))


class Payload:
    """What a hostile pickle holds: a call."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.witness,)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(folder: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    (folder / "audiovae.safetensors").unlink()
    torch.save({"weight": torch.zeros(1), "payload": Payload(witness)}, folder / "audiovae.pth")
    with pytest.raises(CheckpointError, match="would run code"):
        check_checkpoint(folder)
    (folder / "audiovae.pth").write_bytes(pickle.dumps(Payload(witness)))
    with pytest.raises(CheckpointError, match=r"audiovae\.pth"):
        check_checkpoint(folder)
    assert not witness.exists()


@pytest.mark.parametrize("content", [b"", b"not tensors", b"PK\x03\x04 not a zip"])
@pytest.mark.parametrize("file", ["model.safetensors", "audiovae.pth"])
def test_unreadable_files(folder: Path, file: str, content: bytes) -> None:
    (folder / "audiovae.safetensors").rename(folder / "kept")
    if file == "model.safetensors":
        (folder / "kept").rename(folder / "audiovae.safetensors")
    (folder / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=file):
        check_checkpoint(folder)


def test_a_state_dict_of_other_things(folder: Path) -> None:
    (folder / "audiovae.safetensors").unlink()
    torch.save([torch.zeros(1)], folder / "audiovae.pth")
    with pytest.raises(CheckpointError, match="not a mapping"):
        check_checkpoint(folder)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_dtypes(good: Path, dtype: str, expected: torch.dtype) -> None:
    network = load_network(CheckpointFiles.find(good), dtype=dtype)
    assert network.dtype is expected
    assert all(parameter.dtype is torch.float32 for parameter in network.audio_vae.parameters())


def test_auto_dtype_is_float32_on_a_cpu_whatever_the_configuration_says(folder: Path) -> None:
    config = variant_config("concat_condition") | {"dtype": "bfloat16"}
    network = load_network(CheckpointFiles.find(write_checkpoint(folder, config)))
    assert network.dtype is torch.float32
    with pytest.raises(CheckpointError, match="int8"):
        load_network(CheckpointFiles.find(folder), dtype="int8")


def test_configuration_and_tensors_that_disagree(folder: Path) -> None:
    write_checkpoint(folder, changed_config({"residual_lm_num_layers": 2}))
    (folder / "config.json").write_text((default_checkpoint() / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"unknown: residual_lm\.layers\.1\."):
        check_tensors(CheckpointFiles.find(folder))
