"""kill -9 of engines in mid-stream: every kind of answer is the same as without, and none fails.

One server, its default settings but for the number of engines, and the bundled model. What is
compared: texts, tokens, logprobs, calls and usage; what is not: names, times, and cuts of deltas.
"""

import json
import os
import pathlib
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import httpx
import pytest
import trio

from .server import DEADLINE_S, Server, open_server, wait_until
from .streams import SeenStream, open_socket, read_socket, read_sse

pytestmark = pytest.mark.slow

GO_ON = "requests go on at"
CHAT_PATH = "/v1/chat/completions"
# Long enough to be under way still when a slow client sees them so.
TOKENS = 600
# Streams that are killed have so many tokens at least, and have not ended. Few: where the machine
# is busy their engine is far ahead of what a client here has read, and done a second later.
BEGUN = 3
STORY = "Tell me a story about a fox."
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7, "ignore_eos": True}
PENALISED = {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1}
CHAT = {"messages": [{"role": "user", "content": STORY}], "max_tokens": TOKENS, **SAMPLED}
RESPONSE: dict[str, Any] = {
    "input": STORY,
    "max_output_tokens": TOKENS,
    "temperature": 0.8,
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
    "runtime": {"seed": 5, "ignore_eos": True, "token_ids": True, **PENALISED},
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 60, "maxItems": 60}
FORM = {"type": "json_schema", "json_schema": {"name": "list", "schema": LIST}}


@attrs.define(eq=False)
class Progress:
    """How many pieces of each stream have come."""

    pieces: dict[str, int] = attrs.field(factory=dict)

    def is_under_way(self) -> bool:
        return len(self.pieces) >= 3 and all(count >= BEGUN for count in self.pieces.values())


async def chat_stream(
    client: httpx.AsyncClient, name: str, progress: Progress, body: dict[str, Any]
) -> Any:
    """What the choices of a streamed chat completion come to, and its usage."""
    texts: dict[int, str] = {}
    logprobs: dict[int, list[Any]] = {}
    ends: dict[int, str] = {}
    usage = None
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", CHAT_PATH, json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                index = choice["index"]
                texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
                if choice["logprobs"]:
                    logprobs.setdefault(index, []).extend(choice["logprobs"]["content"])
                if choice["finish_reason"]:
                    ends[index] = choice["finish_reason"]
            progress.pieces[name] = progress.pieces.get(name, 0) + 1
    return texts, logprobs, ends, usage


async def whole(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    """The choices of an answer that does not stream."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    for choice in found["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or []:
            del call["id"]
    return found["choices"], found["usage"]


def seen(stream: SeenStream) -> Any:
    """What a stream of events comes to."""
    assert stream.broken is None
    assert stream.error == {}
    kind = "response.output_text.delta"
    logprobs = [e["logprobs"] for e in stream.events if e["type"] == kind]
    last = stream.last["response"]
    flat = [each for piece in logprobs for each in piece]
    return stream.token_ids, stream.text, flat, last["usage"], last["status"]


async def response_stream(
    client: httpx.AsyncClient, name: str, progress: Progress, body: dict[str, Any]
) -> Any:
    stream = SeenStream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_sse, client, body, stream)
        await count_until_ended(stream, name, progress)
    return seen(stream)


async def lane(server: Server, name: str, progress: Progress, body: dict[str, Any]) -> Any:
    stream = SeenStream()
    async with open_socket(server.url) as socket, trio.open_nursery() as nursery:
        create = {"type": "response.create", "stream_id": "a", **body}
        await socket.send_message(json.dumps(create))
        lanes: dict[str | None, SeenStream] = {"a": stream}
        nursery.start_soon(read_socket, socket, lanes)
        await count_until_ended(stream, name, progress)
        nursery.cancel_scope.cancel("the stream has ended")
    return seen(stream)


async def count_until_ended(stream: SeenStream, name: str, progress: Progress) -> None:
    while not stream.ended.is_set():
        progress.pieces[name] = len(stream.token_ids)
        with trio.move_on_after(0.005):
            await stream.ended.wait()


async def background(client: httpx.AsyncClient, body: dict[str, Any]) -> Any:
    """A response that runs without a reader; its text and usage when it has ended."""
    created = await client.post("/v1/responses", json={**body, "background": True})
    response = created.json()

    async def has_ended() -> bool:
        nonlocal response
        response = (await client.get(f"/v1/responses/{response['id']}")).json()
        return response["status"] not in ("queued", "in_progress")

    await wait_until(has_ended, "the background response ends")
    return response["status"], response["output"][0]["content"], response["usage"]


async def ask_all(server: Server, disturb: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Every kind of answer at once; `disturb` is called while they stream.

    None finds what another one has left in the prefix cache.
    """
    found: dict[str, Any] = {}
    progress = Progress()
    client = server.client()

    def salted(name: str, body: dict[str, Any]) -> dict[str, Any]:
        salt = f"{name} {disturb is None}"
        return {**body, "runtime": {**body.get("runtime", {}), "cache_salt": salt}}

    plain = {"prompt": STORY, "max_tokens": TOKENS, **SAMPLED}
    tools = {**CHAT, "tools": [TOOL], "tool_choice": "required", "ignore_eos": False}
    form = {**CHAT, "ignore_eos": False, "response_format": FORM}
    two = {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2, **PENALISED}
    completion = {**plain, "n": 2, "logprobs": 2, "prompt_logprobs": 1}
    kinds: dict[str, Callable[[str], Awaitable[Any]]] = {
        "responses over SSE": lambda name: response_stream(
            client, name, progress, salted(name, RESPONSE)
        ),
        "lane": lambda name: lane(server, name, progress, salted(name, RESPONSE)),
        "chat": lambda name: chat_stream(client, name, progress, salted(name, two)),
        "form": lambda name: whole(client, CHAT_PATH, salted(name, form)),
        "tools": lambda name: whole(client, CHAT_PATH, salted(name, tools)),
        "completion": lambda name: whole(client, "/v1/completions", salted(name, completion)),
        "background": lambda name: background(client, salted(name, RESPONSE)),
    }

    async def keep(name: str) -> None:
        found[name] = await kinds[name](name)

    async with client, trio.open_nursery() as nursery:
        for name in kinds:
            nursery.start_soon(keep, name)
        if disturb is not None:
            await wait_until(progress.is_under_way, "all streams are under way")
            assert not found.keys() & progress.pieces.keys(), "they are under way"
            await disturb()
    return found


async def test_every_answer_is_the_same_with_its_engine_killed(tmp_path: pathlib.Path) -> None:
    options = ("--engines", "2", "--restart-limit", "100")
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, *options) as server:

            async def all_are_ready() -> bool:
                return [each["state"] for each in await server.health()] == ["ready"] * 2

            await wait_until(all_are_ready, "every engine is ready")
            undisturbed = await ask_all(server)
            pids = await server.pids()

            async def kill_engines() -> None:
                """The second when it has taken over from the first: then none is left."""
                os.kill(pids["engine 0"], signal.SIGKILL)
                await wait_until(lambda: GO_ON in server.log(), GO_ON)
                os.kill(pids["engine 1"], signal.SIGKILL)

            again = await ask_all(server, kill_engines)
            for name, answer in undisturbed.items():
                assert again[name] == answer, name
            counts = await server.metrics()
            assert sum(v for name, v in counts.items() if "request_migrations_total" in name) >= 3
            assert sum(v for name, v in counts.items() if "requests_failed_total" in name) == 0
            assert GO_ON in server.log()
