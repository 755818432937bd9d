"""Settings that make a row's arithmetic independent of its neighbours. Imported before torch does any arithmetic.

The generation loop is chaotic: a difference in the last bit of one number becomes different audio within seconds. A
row's bits therefore must not depend on how many rows share a matrix product, nor on the number of threads. MKL
promises that only in its strict reproducibility mode, and reads the mode once, at its first call in the process.
"""

from __future__ import annotations

import os

MKL_MODE = "AUTO,STRICT"
"""Best instruction set of this processor, with results independent of the row count and the thread count."""


def request_strict_mkl() -> None:
    """Ask MKL for :data:`MKL_MODE` unless the operator chose a mode. Must run before the first matrix product."""
    os.environ.setdefault("MKL_CBWR", MKL_MODE)


request_strict_mkl()
