"""How far a free-running render can be compared with another computer's."""

from __future__ import annotations

HORIZON_PATCHES = 16
"""Patches of a golden case whose samples must be the official ones.

The loop is chaotic: one unit in the last place, which is what another order of summation or another processor's
exponential costs, grows more than tenfold every five patches. Of the golden cases only ``combined`` is longer, and its
last two patches differ by up to 3e-3 between processors with and without AVX-512, while all before them agree within
2e-5. Behind official patches every patch is compared (``test_teacher_forced_latents``).
"""

SAMPLES_PER_PATCH = 7680
"""Of the golden checkpoint, at 48 kHz."""

HORIZON_SAMPLES = HORIZON_PATCHES * SAMPLES_PER_PATCH
