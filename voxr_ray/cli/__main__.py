"""``python -m voxr_ray.cli``: the command where its script is not on PATH."""

from __future__ import annotations

from voxr_ray.cli.main import main

main()
