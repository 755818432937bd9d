"""Shared by all tests. Imports neither torch nor ray: most tests need neither."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# ``tests.fakes`` is imported as a package. Appended, so that an installed voxr_ray wins over the checkout's.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


# No test asserts on time: on a busy machine an example may take any.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of the golden data."""
    return ROOT / "tests" / "data" / "reference"
