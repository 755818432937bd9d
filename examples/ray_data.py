"""A table of sentences becomes a table of recordings, with Ray Data (pip install 'ray[data]').

python examples/ray_data.py [name of the speech application]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve

from voxr_ray.encode import AudioFormat, encode_whole
from voxr_ray.messages import SynthRequest


class Speak:
    def __init__(self, speech: str) -> None:
        self.router = serve.get_app_handle(speech)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        result = self.router.synthesize.remote(SynthRequest(text=row["text"], seed=row["id"])).result()
        audio = encode_whole(result.samples, AudioFormat.FLAC, result.summary.sample_rate_hz)[0]
        return row | {"seconds": result.audio_seconds, "flac": audio}


ray.init(address="auto", log_to_driver=False)
sentences = ray.data.from_items([{"id": n, "text": f"This is sentence number {n}."} for n in range(8)])
# As many actors as requests should run at a time: replicas batch what comes together.
speech = sys.argv[1] if len(sys.argv) > 1 else "default"
spoken = sentences.map(Speak, fn_constructor_args=[speech], concurrency=2, num_cpus=0.1)
folder = str(Path("spoken").absolute())  # on one machine; on a cluster, storage that all nodes share
spoken.write_parquet(folder)
print(f"{ray.data.read_parquet(folder).sum('seconds'):.1f} s of speech in spoken/")
