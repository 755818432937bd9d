"""Results as object references: audio goes from the router to Ray tasks, and never through this process.

python examples/object_refs.py [name of the speech application]
"""

from __future__ import annotations

import sys

import numpy as np
import ray
from ray import serve

from voxr_ray.messages import SynthRequest, SynthResult


@ray.remote(num_cpus=0)
def loudness(result: SynthResult) -> tuple[float, float]:
    """Seconds, and decibels below full scale."""
    return result.audio_seconds, 20 * float(np.log10(np.sqrt(np.mean(result.samples**2)) + 1e-9))


ray.init(address="auto", log_to_driver=False)
router = serve.get_app_handle(*sys.argv[1:] or ["default"])

texts = ["One text.", "Another one.", "And a third."]
responses = [router.synthesize.remote(SynthRequest(text=text, seed=7)) for text in texts]
measured = [loudness.remote(response._to_object_ref_sync()) for response in responses]
for text, (seconds, decibels) in zip(texts, ray.get(measured), strict=True):
    print(f"{text}: {seconds:.2f} s, {decibels:.1f} dB")
