"""What ``voxr-ray doctor`` looks at. Each check is a function that gives a finding and changes nothing."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from voxr_ray.cli.serve import PORT
from voxr_ray.config import Settings
from voxr_ray.errors import ConfigurationError

_PACKAGE = "voxr_ray"
_LEAST_PYTHON = (3, 11)
_OTHER_PORTS = {
    8265: (
        "Ray's dashboard",
        "if that is a cluster of ray start, serve joins it; otherwise the dashboard takes the next port",
    ),
    6379: (
        "the head of a Ray cluster",
        "if that is a cluster of ray start, serve joins it; ray start --head needs --port",
    ),
}


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        state: Whether a server can start with it.
        what: What there is.
        remedy: How to mend it, where it has to be.
    """

    state: State
    what: str
    remedy: str = ""


def python() -> Finding:
    """The interpreter."""
    said = f"Python {sys.version.split()[0]}"
    if sys.version_info >= _LEAST_PYTHON:
        return Finding(State.OK, said)
    return Finding(State.FAIL, said, f"it needs {_LEAST_PYTHON[0]}.{_LEAST_PYTHON[1]} or newer")


def libraries() -> Iterator[Finding]:
    """Those without which nothing works, against the versions this package asks for."""
    try:
        wanted = [Requirement(text) for text in metadata.requires(_PACKAGE) or []]
    except metadata.PackageNotFoundError:
        yield Finding(State.NOTE, f"{_PACKAGE} is not installed but run from its source", "pip install . installs it")
        return
    for each in wanted:
        if each.marker is not None and not each.marker.evaluate({"extra": ""}):
            continue
        mend = f"pip install '{each}'"
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            yield Finding(State.FAIL, f"{each.name} is not installed", mend)
            continue
        if not each.specifier.contains(version, prereleases=True):
            yield Finding(State.FAIL, f"{each.name} {version} does not fit {each.specifier}", mend)
        elif each.name in ("ray", "torch"):
            yield Finding(State.OK, f"{each.name} {version}")


def settings(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Settings | None, Finding]:
    """The settings of the environment."""
    try:
        loaded = Settings.load(given, environ)
    except ConfigurationError as error:
        return None, Finding(State.FAIL, "settings", " ".join(error.message.split()))
    return loaded, Finding(State.OK, f"settings: {len(loaded.model_fields_set)} chosen, the others as they come")


def ports() -> Iterator[Finding]:
    """Whether the ports are free that a server takes."""
    if is_free(PORT):
        yield Finding(State.OK, f"port {PORT} is free")
    else:
        yield Finding(
            State.FAIL,
            f"port {PORT} is taken",
            "end what listens there, perhaps a server that runs already (serve shutdown), or serve on another port: "
            "voxr-ray serve --port",
        )
    for port, (what, then) in _OTHER_PORTS.items():
        if is_free(port):
            yield Finding(State.OK, f"port {port} is free")
        else:
            yield Finding(State.NOTE, f"port {port}, of {what}, is taken", then)


def is_free(port: int) -> bool:
    """Whether a server could listen on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger do no harm
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def voices_folder(chosen: Settings) -> Finding:
    """Whether voices can be stored."""
    folder = Path(chosen.voices_dir).expanduser()
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding(State.OK, f"voices are stored in {folder}")
    return Finding(
        State.NOTE, f"voices cannot be stored in {folder}", f"make {there} a folder you can write to, or set voices_dir"
    )


def device(chosen: Settings) -> Finding:
    """The device replicas would compute on."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding(State.FAIL, f"torch cannot be loaded: {error}", "install it anew: https://pytorch.org")
    if not torch.cuda.is_available():
        if chosen.device == "cuda":
            why = "this torch is built without CUDA" if torch.version.cuda is None else "the driver shows none"
            return Finding(
                State.FAIL, f"device is cuda and there is no GPU: {why}", "set device=cpu, or mend driver and torch"
            )
        return Finding(State.OK, f"device cpu, {os.cpu_count()} cores")
    if chosen.device == "cpu":
        return Finding(State.OK, f"device cpu, {os.cpu_count()} cores, though there is a GPU")
    names = ", ".join(
        f"{facts.name} ({facts.total_memory / 2**30:.0f} GiB)"
        for facts in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    )
    return Finding(State.OK, f"device cuda: {names}")


def model_files(chosen: Settings) -> tuple[Path | None, Finding]:
    """Whether the checkpoint is there, complete, and fits its configuration."""
    from voxr_ray.voxcpm2.check import check_checkpoint
    from voxr_ray.voxcpm2.hub import DEFAULT_MODEL, local_checkpoint

    folder = None
    try:
        folder = local_checkpoint(chosen.model)
        if folder is None:
            return None, Finding(
                State.NOTE,
                f"model {chosen.model} is not on this machine",
                f"the first start downloads it; so does: hf download {chosen.model}",
            )
        check_checkpoint(folder)
    except ConfigurationError as error:
        why = " ".join(error.message.split())
        if folder is not None and chosen.model != DEFAULT_MODEL and not Path(chosen.model).expanduser().is_dir():
            # A download that was broken off goes on at the next start.
            return None, Finding(State.NOTE, f"model {chosen.model}: {why}", f"hf download {chosen.model}")
        return None, Finding(State.FAIL, f"model {chosen.model}", why)
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    return folder, Finding(State.OK, f"model {chosen.model}: complete, {size / 2**20:,.0f} MiB in {folder}")


def memory(chosen: Settings, folder: Path) -> Finding:
    """Whether the memory of the device holds it."""
    from voxr_ray.app import check_memory, choose_size, memory_doubts, resolve_device
    from voxr_ray.voxcpm2.sizing import needs_of

    try:
        placed = choose_size(resolve_device(chosen), folder)
        check_memory(placed, folder)
    except ConfigurationError as error:
        return Finding(State.FAIL, "memory", " ".join(error.message.split()))
    needs = needs_of(placed, folder)
    if doubts := memory_doubts(placed, folder):
        return Finding(State.NOTE, "memory holds the model", doubts[0])
    return Finding(State.OK, f"memory holds a replica with all slots full: {needs}")
