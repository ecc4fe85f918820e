"""The unmodified SDK: the three ways to stop a response, and what the engine counts afterwards.

python cancel.py URL; prints one record for each way, as JSON. `tokens` are those of the response
when it was stopped, `steps` those that the engine took for it in all, `freed_after` those between
its abort and the blocks that it gave back.
"""

import json
import sys
from typing import Any

import httpx
from openai import OpenAI

url = sys.argv[1]
# Of looks at /metrics, each some milliseconds; a server that needs more has missed it.
LOOKS_MAX = 5000
TOKENS_BEFORE = 3


def metrics() -> dict[str, float]:
    """The engine's counts."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removesuffix('{engine="0"}'): float(value) for name, _, value in pairs}


def watch(before: dict[str, float]) -> dict[str, float]:
    """The engine's first counts with one more abort that has given its blocks back."""
    name = "triolet_engine_requests_aborted_total"
    for _ in range(LOOKS_MAX):
        counts = metrics()
        if counts[name] > before[name] and freed_after(before, counts):
            return counts
    raise AssertionError("the engine was not told of the abort")


def stop(client: OpenAI, way: str) -> dict[str, Any]:
    """Stop one response after some tokens."""
    before = metrics()
    tokens, last, response_id = 0, "", ""
    with client.responses.connect() as connection:
        create: Any = {
            "type": "response.create",
            "model": "triolet-bundled",
            "input": "Tell me a story about a fox.",
            "max_output_tokens": 1000,
            "stream_id": "a",
            "runtime": {"ignore_eos": True, "token_ids": True},
        }
        connection.send(create)
        for event in connection:
            last = event.type
            if event.type == "response.created":
                response_id = event.response.id
            elif event.type == "response.output_text.delta":
                before_tokens = tokens
                tokens += len((event.model_extra or {})["token_ids"])
                if before_tokens < TOKENS_BEFORE <= tokens and way == "http":
                    assert client.responses.cancel(response_id).status == "cancelled"
                elif before_tokens < TOKENS_BEFORE <= tokens and way == "event":
                    cancel: Any = {"type": "response.cancel", "response_id": response_id}
                    connection.send(cancel)
                elif tokens >= TOKENS_BEFORE and way == "leave":
                    break
            elif event.type in ("response.incomplete", "response.completed", "response.failed"):
                assert event.response.usage
                tokens = event.response.usage.output_tokens
                last = f"{event.type} {event.response.status}"
                break
    after = watch(before)
    return {
        "way": way,
        "last": last,
        "tokens": tokens,
        "steps": after["triolet_steps_total"] - before["triolet_steps_total"],
        "freed_after": freed_after(before, after),
        "free": after["triolet_kv_blocks_free"],
        "all": after["triolet_kv_blocks"],
    }


def freed_after(before: dict[str, float], after: dict[str, float]) -> list[int]:
    """After how many steps the abort between two looks had given its blocks back."""
    return [
        steps for steps in range(9) if after.get(name_of(steps), 0) > before.get(name_of(steps), 0)
    ]


def name_of(steps: int) -> str:
    return f'triolet_engine_aborts_by_steps_total{{engine="0",steps="{steps}"}}'


with OpenAI(api_key="none", base_url=f"{url}/v1") as openai_client:
    records = [stop(openai_client, way) for way in ("http", "event", "leave")]
sys.stdout.write(json.dumps(records))
