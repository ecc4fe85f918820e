"""Two answers at once over one WebSocket, each in a lane of its own.

triolet serve                  # in another terminal
python examples/lanes.py
"""

import json
import sys

import trio
from trio_websocket import open_websocket_url

URL = "ws://127.0.0.1:8000/v1/responses"
PROMPTS = {"fox": "Tell me a story about a fox.", "owl": "Tell me a story about an owl."}
ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


async def main(url: str) -> None:
    async with open_websocket_url(url) as socket:
        for lane, prompt in PROMPTS.items():
            body = {"model": "triolet-bundled", "input": prompt, "max_output_tokens": 60}
            ask = {"type": "response.create", "stream_id": lane, **body}
            await socket.send_message(json.dumps(ask))
        open_lanes = set(PROMPTS)
        while open_lanes:
            event = json.loads(await socket.get_message())
            if event["type"] == "response.output_text.delta":
                print(event["stream_id"], event["delta"], sep=": ")
            elif event["type"] in ENDS:
                print(event["stream_id"], event["type"], sep=": ")
                open_lanes.remove(event["stream_id"])


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else URL)
