"""A language model's answer, spoken while it is still being written (pip install websockets).

python examples/llm_to_speech.py [ws://localhost:8000]
"""

import asyncio
import json
import sys

import websockets

ANSWER = "Speech begins with the first sentence. The second is still being written by then."


async def tokens():  # in place of a language model's stream
    for word in ANSWER.split(" "):
        await asyncio.sleep(0.02)
        yield word + " "


async def write(socket: websockets.ClientConnection) -> None:
    async for token in tokens():
        await socket.send(json.dumps({"type": "input.text", "text": token}))
    await socket.send(json.dumps({"type": "input.done"}))


async def main(url: str) -> None:
    async with websockets.connect(f"{url}/v1/audio/speech/stream") as socket, asyncio.TaskGroup() as tasks:
        await socket.send(json.dumps({"type": "session.config", "response_format": "pcm", "seed": 7}))
        tasks.create_task(write(socket))
        with open("spoken.pcm", "wb") as file:  # or a player's standard input
            async for event in socket:
                if isinstance(event, bytes):
                    file.write(event)
                elif json.loads(event)["type"] == "session.done":
                    break


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://localhost:8000"))
