"""OpenAI's client (pip install openai): a file, and a stream.

python examples/openai_client.py [http://localhost:8000]
"""

from __future__ import annotations

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000"
client = OpenAI(base_url=f"{url}/v1", api_key="none")
model = client.models.list().data[0].id

speech = client.audio.speech.create(model=model, voice="default", input="Hello world.", response_format="opus")
speech.write_to_file("hello.opus")

# Fields that OpenAI's interface does not have go into extra_body.
own = {"seed": 7, "stream": True, "inference_timesteps": 8}
with client.audio.speech.with_streaming_response.create(
    model=model, voice="default", input="Piece by piece.", response_format="wav", extra_body=own
) as answer:
    print("seed", answer.headers["x-voxr-seed"])
    answer.stream_to_file("streamed.wav")
