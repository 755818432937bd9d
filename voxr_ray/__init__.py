"""VoxCPM2 text-to-speech with continuous batching, served on Ray Serve.

``serve run voxr_ray:app`` serves it; :mod:`voxr_ray.messages` has the values for deployment handles. Importing this
package imports neither ray nor torch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxr_ray.app import app as app

__all__ = ["app"]


class _Package(ModuleType):
    """This package, where ``app`` always means the builder.

    The submodule that holds the builder has the same name, and importing it would put the module in its place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "app" and isinstance(value, ModuleType):
            value = value.app
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "app":
        from voxr_ray.app import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
