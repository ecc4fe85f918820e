"""Streams of every kind whose readers come back by number, and what they read together.

What is compared: every event but for the cuts of deltas, ids and times; the numbers of what is not
cut; of chunks what they say together.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import trio

from ..api.anthropic.events import message_of
from ..api.chunks import said_of
from .server import Server, wait_until
from .streams import TERMINAL

TOKENS = 600
# Behind what a response begins with; events merge while a client is slow.
BEGUN = 8
# To meet all under way: one in thirty runs of all tests missed it once.
ATTEMPTS = 5
STORY = "Tell me a story about a fox."
PENALISED = {"frequency_penalty": 0.4, "repetition_penalty": 1.1}
SCHEMA = {
    "type": "object",
    "properties": {"cities": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["cities"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "visit", "parameters": SCHEMA, "strict": True}
FREE = {"seed": 5, "ignore_eos": True, "token_ids": True}
PLAIN: dict[str, Any] = {"input": STORY, "max_output_tokens": TOKENS, "temperature": 0.8}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {**PLAIN, "runtime": FREE},
    "logprobs": {
        **PLAIN,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        "runtime": {**FREE, **PENALISED},
    },
    "stop strings": {**PLAIN, "runtime": {**FREE, "stop": ["\u2603", "snowman in the moon"]}},
    "text alone": {**PLAIN, "runtime": {"seed": 6, "ignore_eos": True}},
    "tools": {**PLAIN, "tools": [TOOL], "tool_choice": "required", "runtime": {"seed": 5}},
    "form": {
        **PLAIN,
        "text": {"format": {"type": "json_schema", "name": "c", "schema": SCHEMA, "strict": True}},
        "runtime": {"seed": 5},
    },
}
CHAT_PATH, PATH = "/v1/chat/completions", "/v1/completions"
SHARED: dict[str, Any] = {
    "max_tokens": TOKENS,
    "temperature": 0.8,
    "seed": 5,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
    "runtime": {"keep_s": 30},
}
CHAT: dict[str, Any] = {**SHARED, "messages": [{"role": "user", "content": STORY}]}
FUNCTION = {name: value for name, value in TOOL.items() if name != "type"}
COMPLETIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat with logprobs": (CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "chat of two": (CHAT_PATH, {**CHAT, "n": 2, "return_token_ids": True}),
    "chat with stop strings": (CHAT_PATH, {**CHAT, "stop": ["\u2603", "snowman in the moon"]}),
    "chat with tools": (
        CHAT_PATH,
        {
            **CHAT,
            "ignore_eos": False,
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
        },
    ),
    "completions": (PATH, {**SHARED, "prompt": ["A fox", "One day"], "n": 2, "echo": True}),
    "scored completions": (PATH, {**SHARED, "prompt": STORY, "echo": True, "logprobs": 1}),
}
MESSAGE: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": TOKENS,
    "temperature": 0.8,
    "messages": [{"role": "user", "content": STORY}],
    "runtime": {"seed": 5, "keep_s": 30},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "message": {**MESSAGE, "runtime": {**MESSAGE["runtime"], "ignore_eos": True}},
    "message with tools": {
        **MESSAGE,
        "tools": [{"name": "visit", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    },
}


@attrs.define(eq=False)
class Stream:
    """All events of one answer, with their ids, over as many connections as it takes."""

    path: str
    frames: list[tuple[str, Any]] = attrs.field(factory=list)
    connections: int = 0

    @property
    def events(self) -> list[Any]:
        return [event for _, event in self.frames]

    @property
    def answer_id(self) -> str:
        """The first event has it, or the object that this is about."""
        first = self.frames[0][1]
        found = first.get("response") or first.get("message") or first
        assert isinstance(found["id"], str)
        return found["id"]

    @property
    def reading_path(self) -> str:
        """Where it is read on."""
        return f"{self.path}/{self.answer_id}/stream"

    @property
    def has_ended(self) -> bool:
        return bool(self.frames) and self.frames[-1][1] == "[DONE]"

    @property
    def has_begun(self) -> bool:
        return len(self.frames) >= BEGUN

    async def read(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        """From the request to the last event."""
        async with _stream(client, "POST", self.path, json={**body, "stream": True}) as lines:
            await self._see(lines)
        while not self.has_ended:
            assert self.frames, "it was cut before its first event"
            headers = {"last-event-id": self.frames[-1][0]}
            async with _stream(client, "GET", self.reading_path, headers=headers) as lines:
                await self._see(lines)

    async def _see(self, lines: AsyncIterator[str]) -> None:
        self.connections += 1
        event_id, seen = "", {event_id for event_id, _ in self.frames}
        try:
            async for line in lines:
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    assert event_id not in seen, event_id
                    seen.add(event_id)
                    text = line.removeprefix("data: ")
                    self.frames.append((event_id, text if text == "[DONE]" else json.loads(text)))
        except httpx.TransportError:
            pass

    def said(self) -> Any:
        """Its events, but for ids that are drawn."""
        return json.loads(json.dumps(self.frames).replace(self.answer_id.partition("_")[2], "ID"))

    def whole(self) -> Any:
        """All of it, but for what differs from run to run: of a completion."""
        choices, (usage, done) = said_of(self.said())
        for said in choices.values():
            del said["chunk"]["created"]
        del usage["usage"]["prompt_tokens_details"]  # a second choice may find the first one's
        return choices, usage["usage"], done


class MessageStream(Stream):
    """That of a message."""

    @property
    def has_ended(self) -> bool:
        return bool(self.frames) and self.frames[-1][1]["type"] == "message_stop"

    def whole(self) -> Any:
        return message_of(event for _, event in self.said())


class ResponseStream(Stream):
    """That of a response, whose ids are its events' numbers."""

    @property
    def reading_path(self) -> str:
        return f"{self.path}/{self.answer_id}?stream=true"

    @property
    def has_ended(self) -> bool:
        return bool(self.frames) and self.frames[-1][1]["type"] in TERMINAL

    def whole(self) -> Any:
        numbers = [event["sequence_number"] for event in self.events]
        assert numbers == sorted(set(numbers)), "they grow"
        found: list[dict[str, Any]] = []
        for _, event in self.said():
            response = event.get("response")
            if response is not None:
                del response["created_at"]
                # An engine that goes on with it may find what the one before had computed.
                (response["usage"] or {}).pop("input_tokens_details", None)
            before = found[-1] if found else {}
            if event["type"].endswith(".delta") and before.get("type") == event["type"]:
                before["delta"] += event["delta"]
                for name in ("logprobs", "token_ids"):
                    if name in event:
                        before[name] += event[name]
                before["sequence_number"] = event["sequence_number"]
            else:
                found.append(event)
        return found


@asynccontextmanager
async def _stream(
    client: httpx.AsyncClient, method: str, path: str, **options: Any
) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of an answer, asked for again while none comes."""
    while True:
        try:
            async with client.stream(method, path, **options) as response:
                if response.status_code == 503:
                    await trio.sleep(0.05)
                    continue
                assert response.status_code == 200, await response.aread()
                yield response.aiter_lines()
                return
        except httpx.TransportError:
            await trio.sleep(0.05)


async def ask_all(
    server: Server, salt: str, disturb: Callable[[], Awaitable[None]] | None = None
) -> dict[str, Stream]:
    """Every kind of stream at once; disturbed once all are under way.

    On a busy machine one may end before the last one is seen to begin: they are asked for again.
    """
    async with server.client() as client:
        for attempt in range(ATTEMPTS):
            async with trio.open_nursery() as nursery:
                streams = _begin_all(nursery, client, f"{salt} {attempt}")
                if disturb is not None and not await _are_under_way(streams):
                    nursery.cancel_scope.cancel(reason="there is nothing left to disturb")
                    continue
                if disturb is not None:
                    await disturb()
            return streams
    raise AssertionError("one had always ended before all were under way")


def _begin_all(nursery: trio.Nursery, client: httpx.AsyncClient, salt: str) -> dict[str, Stream]:
    streams: dict[str, Stream] = {}

    def begin(name: str, stream: Stream, body: dict[str, Any]) -> None:
        streams[name] = stream
        runtime = {**body["runtime"], "cache_salt": f"{name} {salt}"}
        nursery.start_soon(stream.read, client, {**body, "runtime": runtime})

    for name, body in BODIES.items():
        begin(name, ResponseStream("/v1/responses"), body)
    for name, (path, body) in COMPLETIONS.items():
        begin(name, Stream(path), body)
    for name, body in MESSAGES.items():
        begin(name, MessageStream("/v1/messages"), body)
    return streams


async def _are_under_way(streams: dict[str, Stream]) -> bool:
    """Wait until they are, or one has ended before."""

    def is_decided() -> bool:
        every = streams.values()
        return all(each.has_begun for each in every) or any(each.has_ended for each in every)

    await wait_until(is_decided, "all streams are under way")
    return not any(stream.has_ended for stream in streams.values())


def check_same(
    found: dict[str, Stream],
    wanted: dict[str, Stream],
    *,
    is_held: bool = False,
) -> None:
    """Each is what the undisturbed one is, over one connection if they are held, or was cut."""
    for name, stream in wanted.items():
        assert stream.connections == 1
        assert (found[name].connections == 1) == is_held, name
        assert found[name].whole() == stream.whole(), name
