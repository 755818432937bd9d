"""Another Serve application on the same cluster that speaks through this one's handle.

python examples/from_another_app.py [name of the speech application]
"""

from __future__ import annotations

import sys

import ray
from ray import serve

from voxr_ray.encode import AudioFormat, encode_whole
from voxr_ray.messages import SynthRequest


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Announcer:
    def __init__(self, speech: str) -> None:
        self.router = serve.get_app_handle(speech)

    async def announce(self, train: str, platform: int) -> bytes:
        request = SynthRequest(text=f"The train to {train} leaves from platform {platform}.", seed=7)
        result = await self.router.synthesize.remote(request)
        return encode_whole(result.samples, AudioFormat.MP3, result.summary.sample_rate_hz)[0]


ray.init(address="auto", log_to_driver=False)
announcer = serve.run(Announcer.bind(*sys.argv[1:] or ["default"]), name="announcer", route_prefix=None)
try:
    with open("train.mp3", "wb") as file:
        file.write(announcer.announce.remote("Ulm", 4).result())
finally:
    serve.delete("announcer")
