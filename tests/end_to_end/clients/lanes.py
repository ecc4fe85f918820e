"""The unmodified SDK: many lanes of one WebSocket at once, then each request alone over HTTP.

python lanes.py URL LANES TOKENS; prints what came, as JSON. No lane gets more than its first tokens
before all have begun, however busy the machine: they have credit for no more.
"""

import json
import sys
from typing import Any

from openai import OpenAI

url, lanes, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
FIRST_TOKENS = 4
ANIMALS = ("fox", "bear", "hedgehog", "swan", "owl", "cat", "goat", "rabbit")


def request(number: int) -> dict[str, Any]:
    """Every second one is sampled with a seed, the others are greedy."""
    animal = ANIMALS[number // 2 % len(ANIMALS)]
    return {
        "model": "triolet-bundled",
        "input": f"Tell me a story about a {animal}.",
        "max_output_tokens": tokens,
        "temperature": number % 2,
    }


def runtime(number: int) -> dict[str, Any]:
    """Our own fields, which the SDK passes on."""
    return {"seed": number, "ignore_eos": True}


texts = ["" for _ in range(lanes)]
order: list[tuple[int, str]] = []
ends: dict[int, str] = {}
silent = set(range(lanes))
with OpenAI(api_key="none", base_url=f"{url}/v1") as client:
    with client.responses.connect() as connection:
        for number in range(lanes):
            event: Any = {
                "type": "response.create",
                "stream_id": str(number),
                "runtime": {**runtime(number), "credit": FIRST_TOKENS},
                **request(number),
            }
            connection.send(event)
        for answer in connection:
            lane = int(answer.stream_id or -1)
            order.append((lane, answer.type))
            if answer.type == "response.output_text.delta":
                texts[lane] += answer.delta
                if silent == {lane}:
                    for number in range(lanes):
                        grant: Any = {
                            "type": "runtime.credit",
                            "stream_id": str(number),
                            "add": tokens,
                        }
                        connection.send(grant)
                silent.discard(lane)
            elif answer.type in TERMINAL:
                ends[lane] = answer.type
                if len(ends) == lanes:
                    break
    alone = [
        client.responses.create(
            **request(number), extra_body={"runtime": runtime(number)}
        ).output_text
        for number in range(lanes)
    ]
sys.stdout.write(json.dumps({"together": texts, "alone": alone, "order": order, "ends": ends}))
