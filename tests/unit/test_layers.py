"""Imports point down the layers, never up; and what must stay light stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import voxr_ray

PACKAGE = Path(voxr_ray.__file__).parent
STANDARD = set(sys.stdlib_module_names) | {"__future__"}

# layer of a module, the other packages of this project it may use, and libraries
NUMERIC = {"numpy", "pydantic", "pydantic_core"}
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "messages": ({"errors"}, NUMERIC),
    "config_source": ({"errors"}, set()),
    "config": ({"errors", "config_source"}, NUMERIC),
    "decode": ({"errors"}, {"numpy", "soundfile", "av"}),
    "audio": ({"errors", "decode"}, {"numpy", "soxr"}),
    "encode": ({"errors", "audio"}, {"numpy", "soxr", "av"}),
    "engine": ({"errors", "messages", "config", "audio", "engine"}, NUMERIC),
    "voxcpm2": (
        {"errors", "messages", "config", "audio", "engine.model", "engine.widths", "voxcpm2"},
        NUMERIC | {"torch", "safetensors", "tokenizers", "huggingface_hub"},
    ),
    "serve": (
        {"errors", "messages", "config", "decode", "audio", "encode", "engine", "serve"},
        NUMERIC | {"ray", "fastapi", "starlette", "grpc", "httpx", "wetext"},
    ),
    "app": ({"errors", "messages", "config", "audio", "engine", "voxcpm2", "serve"}, {"ray", "click", "torch"}),
    "cli": (
        {"errors", "messages", "config", "audio", "encode", "voxcpm2", "serve", "app", "cli"},
        {"click", "httpx", "numpy", "packaging", "ray", "torch", "tqdm"},
    ),
    "__init__": ({"app"}, set()),
}

MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports(tree: ast.AST) -> set[str]:
    """Absolute names of what a piece of source imports; of ``from x import y`` both x and x.y."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
    return found


def allowed(name: str, permitted: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in permitted)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: dotted(path))
def test_imports_point_down(path: Path) -> None:
    layer = dotted(path).partition(".")[0]
    assert layer in LAYERS, f"{layer} has no layer: give it one in the design, then here"
    project, libraries = LAYERS[layer]
    for name in imports(ast.parse(path.read_text())):
        top = name.partition(".")[0]
        if top == "voxr_ray":
            inside = name.partition(".")[2]
            assert allowed(inside, project), f"{dotted(path)} imports {name}"
        elif top not in STANDARD:
            assert top in libraries, f"{dotted(path)} imports {name}"


def load_alone(statement: str, forbidden: list[str]) -> None:
    """Run an import in a fresh interpreter and fail if it pulls in one of ``forbidden``."""
    code = f"import sys; {statement}; print([name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import voxr_ray", ["ray", "torch", "numpy"]),
        ("import voxr_ray.messages, voxr_ray.config, voxr_ray.audio, voxr_ray.encode", ["ray", "torch", "fastapi"]),
        ("import voxr_ray.engine.engine, voxr_ray.engine.async_reply", ["ray", "torch", "fastapi"]),
        ("import voxr_ray.serve.router", ["torch", "voxr_ray.voxcpm2"]),
        ("import voxr_ray.serve.replica", ["torch", "voxr_ray.voxcpm2"]),
        ("from voxr_ray import app", ["torch", "voxr_ray.voxcpm2"]),
        ("import voxr_ray.cli.main", ["ray", "torch", "numpy", "httpx", "fastapi", "voxr_ray.config"]),
    ],
)
def test_light_imports_stay_light(statement: str, forbidden: list[str]) -> None:
    load_alone(statement, forbidden)


def test_loading_a_checkpoint_does_not_load_a_compiler() -> None:
    load_alone(
        "from voxr_ray.voxcpm2.hub import default_checkpoint; from voxr_ray.voxcpm2.loader import load_slot_model; "
        "load_slot_model(str(default_checkpoint()), device='cpu', dtype='float32', threads=1)",
        ["torch._dynamo"],
    )


def test_app_is_the_builder_however_it_is_imported() -> None:
    load_alone(
        "import types, voxr_ray.app; from voxr_ray.app import build_app; from voxr_ray import app; "
        "assert isinstance(app, types.FunctionType) and app is voxr_ray.app",
        [],
    )
    with pytest.raises(AttributeError, match="nothing"):
        voxr_ray.nothing  # noqa: B018


def test_every_module_says_what_it_is() -> None:
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{dotted(path)} has no docstring"
