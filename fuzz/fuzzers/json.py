"""Fuzzes JSON of wrong shapes: bodies of every route that takes one, and events on a socket.

Invariant: each gets an answer or a typed error that is no fault of ours, and nothing is held.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

import attrs
import msgspec

from ...api.application import Application
from ...api.openai.chat_requests import CHAT
from ...api.openai.completion_requests import COMPLETIONS
from ...api.serving.server import ConnectionSource, serve_connections
from ...runtime.frontend.generation import Generator
from ..doubles.served import (
    CAME_LATE,
    DEADLINE_S,
    FAULT_STATUSES,
    Serve,
    Served,
    check_served,
    serve_filtered,
)
from ..doubles.tcp_client import Ending, converse
from ..doubles.websocket_frames import HANDSHAKE, TEXT, frame
from ..drawing import mutate, mutate_json
from ..fuzzer import Fuzzer, each
from .frames import read_close_code

IN_FLIGHT = 12
_RUNTIME = {"seed": 1, "top_k": 3, "min_tokens": 1, "token_ids": True, "events": True}
_RESPONSE = {
    "model": None,
    "input": [
        {"role": "system", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
    ],
    "instructions": "c",
    "temperature": 0.5,
    "top_p": 0.9,
    "max_output_tokens": 3,
    "metadata": {"a": "b"},
    "stream": False,
    "store": True,
    "background": False,
    "runtime": _RUNTIME,
}
_TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
# Valid bodies by route; what is drawn is spoiled from these.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/responses": _RESPONSE,
    "/v1/chat/completions": {
        "messages": [*_TURNS, {"role": "user", "content": [{"type": "text", "text": "c"}]}],
        "max_completion_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["x", "y"],
        "n": 1,
        "seed": 1,
        "runtime": _RUNTIME,
    },
    "/v1/completions": {
        "prompt": ["a", [1, 2, 3]],
        "max_tokens": 2,
        "echo": True,
        "stream": False,
        "logit_bias": {},
    },
    "/tokenize": {"prompt": "a b", "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
EVENTS: Sequence[Mapping[str, Any]] = (
    {"type": "response.create", "stream_id": "a", "event_id": "e1", **_RESPONSE},
    {"type": "response.create", "input": "b", "max_output_tokens": 2},
    {"type": "response.create", "input": "b", "generate": False, "stream_id": "b"},
    {"type": "response.create", "response": {"input": "c", "max_output_tokens": 1}},
    {"type": "response.cancel", "response_id": "resp_1", "stream_id": "a"},
    {"type": "response.resume", "response_id": "resp_1", "starting_after": 3, "stream_id": "r"},
    {"type": "response.steer", "input": "d"},
    {"type": "runtime.credit", "add": 3, "stream_id": "a"},
)
NAMES = (
    *CHAT.fields,
    *COMPLETIONS.fields,
    *_RESPONSE,
    *("previous_response_id", "generate", "tools", "text", "include", "reasoning", "stream_id"),
    *("response_id", "starting_after", "event_id", "credit", "deadline_ms", "keep_s"),
)


@attrs.frozen
class Post:
    """A body to a route."""

    path: str
    body: bytes


@attrs.frozen
class Socket:
    """Messages on a socket of their own."""

    texts: tuple[bytes, ...]


Event = Post | Socket


def _draw_event(chance: Random) -> Event:
    """Valid bodies with a change or three, some of them with spoiled bytes on top."""
    if chance.random() < 0.25:
        drawn = [_spoil(chance, chance.choice(EVENTS)) for _ in range(chance.randint(1, 12))]
        return Socket(tuple(drawn))
    path = chance.choice(list(BODIES))
    return Post(path, _spoil(chance, BODIES[path]))


def _spoil(chance: Random, value: Mapping[str, Any]) -> bytes:
    kept = {name: item for name, item in value.items() if item is not None}
    if chance.random() < 0.9:
        kept = mutate_json(chance, kept, names=NAMES)
    text = msgspec.json.encode(kept)
    return mutate(chance, text) if chance.random() < 0.1 else text


def check(events: Sequence[Event], serve: Serve) -> Counter[str]:
    """Run all against one server, some at once; then it must be as it was."""
    return check_served(events, _run_one, serve, in_flight=IN_FLIGHT)


async def _run_one(served: Served, event: Event, reached: Counter[str]) -> None:
    if isinstance(event, Post):
        await _post(served, event, reached)
    else:
        data = HANDSHAKE + b"".join(frame(TEXT, text) for text in event.texts)
        left = await converse(served.address, (data,), Ending.WAIT, deadline_s=DEADLINE_S)
        while left.received.startswith(CAME_LATE):
            left = await converse(served.address, (data,), Ending.WAIT, deadline_s=DEADLINE_S)
        read_close_code(left.received)
        reached["errors on sockets"] += left.received.count(b'"type":"error"')
        reached["responses on sockets"] += left.received.count(b'"type":"response.created"')


async def _post(served: Served, event: Post, reached: Counter[str]) -> None:
    status, body = await served.post(event.path, event.body)
    assert status == 200 or status in FAULT_STATUSES, (status, body)
    reached[f"{event.path}: {'answered' if status == 200 else 'refused'}"] += 1
    if status != 200:
        assert isinstance(body, dict), body
        error = body["error"]
        assert error["code"], body
        assert error["message"], body


# ---- planted faults


async def _serve_without_a_model(source: ConnectionSource, application: Application) -> None:
    """Planted: what is asked of the model fails in a way that is not foreseen."""
    application.generator = cast(Generator, _Failing(application))
    await serve_connections(source, application)


class _Failing:
    """A generator whose every use is a `KeyError`."""

    def __init__(self, application: Application) -> None:
        self.model_name = application.generator.model_name
        self.max_model_len = application.generator.max_model_len
        self.health = application.generator.health
        self.statistics = application.generator.statistics

    def generate(self, *args: object, **options: object) -> Any:
        """An error that is not expected anywhere."""
        raise KeyError("it is not here")


FUZZER = Fuzzer[Event, Serve](
    name="json",
    invariant="each body or event gets an answer or a typed error, and nothing is held",
    draw=each(_draw_event),
    check=check,
    target=serve_connections,
    faults={
        "an error that nobody has foreseen": _serve_without_a_model,
        "refusals have no code": serve_filtered(lambda data: data.replace(b'"code"', b'"kode"')),
    },
    round_events=60,
    smoke_rounds=4,
    reaches=frozenset(
        {
            *(f"{path}: {what}" for path in BODIES for what in ("answered", "refused")),
            *("errors on sockets", "responses on sockets"),
        }
    ),
)
