"""Fuzzes JSON bodies and events in memory: the decoder, and the readers of all protocols behind it.

Invariant: each is refused by name, or is read and says the same when it is written and read again;
what its reader makes of it is then the same, too.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs
import msgspec

from ....api.anthropic.messages_request import read_count_request, read_messages_request
from ....api.errors import ApiError
from ....api.openai.chat_requests import read_chat_request
from ....api.openai.completion_requests import read_completions_request
from ....api.openai.responses_request import (
    read_credit,
    read_event_id,
    read_response_request,
    read_resume_request,
)
from ....api.openai.tokenizer_request import read_detokenize_request, read_tokenize_request
from ....api.schema.fields import COUNTED_FROM_BYTES, JsonObject, decode_object
from ....runtime.text.answer_format import AnswerFormat
from ....runtime.text.reasoning import REASONING_MARKS
from ....runtime.text.tool_formats import HERMES_FORMAT
from ...drawing import mutate, mutate_json
from ...fuzzer import Fuzzer, bare, each
from ..grammars import KEYWORDS, SCHEMAS
from ..json import BODIES, EVENTS, NAMES

# Served is a model that thinks and calls, so that all fields are read.
_SERVED: Mapping[str, Any] = {
    "model": "m",
    "answer_format": AnswerFormat(reasoning=REASONING_MARKS["think"], tools=HERMES_FORMAT),
}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1'}}
_TOOL = {"name": "f", "description": "d", "parameters": _SCHEMA}
_CHAT_TOOLS = {
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "b"},
    ],
    "tools": [{"type": "function", "function": _TOOL}],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}},
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": -100},
}
_RESPONSE_TOOLS = {
    "input": [
        {"type": "message", "role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": NaN}'},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ],
    "tools": [{"type": "function", **_TOOL}, {"type": "custom", "name": "g"}],
    "tool_choice": "auto",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
    "reasoning": {"effort": "low", "summary": "auto"},
}
_MESSAGES = {
    "model": "claude-x",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
                                          {"type": "tool_use", "id": "u", "name": "f",
                                          "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "content": "c"}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "stop_sequences": ["x"],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}  # fmt: skip
_COUNT = {name: value for name, value in _MESSAGES.items() if name not in ("max_tokens",)}
Reader = Callable[[JsonObject], object]
# {kind: its reader, bodies as they should be}.
KINDS: Mapping[str, tuple[Reader, Sequence[Mapping[str, Any]]]] = {
    "responses": (
        partial(read_response_request, **_SERVED),
        (BODIES["/v1/responses"], _RESPONSE_TOOLS, *EVENTS),
    ),
    "chat": (partial(read_chat_request, **_SERVED),
             (BODIES["/v1/chat/completions"], _CHAT_TOOLS)),
    "completions": (partial(read_completions_request, model=_SERVED["model"]),
                    (BODIES["/v1/completions"], {"prompt": [[1, 2], [3]], "logprobs": 1})),
    "messages": (partial(read_messages_request, **_SERVED), (_MESSAGES,)),
    "count": (partial(read_count_request, **_SERVED), (_COUNT,)),
    "tokenize": (partial(read_tokenize_request, **_SERVED),
                 (BODIES["/tokenize"], {"messages": _CHAT_TOOLS["messages"]})),
    "detokenize": (partial(read_detokenize_request, model=_SERVED["model"]),
    (BODIES["/detokenize"],)),
    "resume": (read_resume_request, EVENTS[5:6]),
    "credit": (read_credit, EVENTS[7:8]),
    "event id": (read_event_id, EVENTS[:1]),
}  # fmt: skip
# How a protocol writes a function whose parameters are this schema.
TOOLS: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
    "responses": lambda schema: {"type": "function", "name": "f", "parameters": schema},
    "chat": lambda schema: {"type": "function", "function": {"name": "f", "parameters": schema}},
    "messages": lambda schema: {"name": "f", "input_schema": schema},
}
# Values that JSON has not, or that readers of it disagree about, in the place of some other value.
ODD_TEXTS = (
    b"NaN", b"-Infinity", b"1e999", b"-1e999", b"1e-999", b"-0", b"01", b"1.", b".5", b"+1", b"0x1",
    b"9" * 400, b"-" + b"9" * 25, b"1e22", b"9007199254740993", b"18446744073709551616", b"'a'",
    b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude42"', b'"\\ud83d"', b'"\\u0000"', b'"\\x41"',
    b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"\t"', b'"\\', b'"', b"\xef\xbb\xbf{}", b"\0",
    b"[" * 2000, b'{"a":' * 1500, b"[" * 900 + b"]" * 900, b"{,}", b"[1,]", b'{"a":1,"a":2}',
    b'{"":{"":{"":null}}}', b"nul", b"True", b"/* */1", b"{}{}", b'"' + b"a" * 20_000 + b'"',
)  # fmt: skip
# Beyond what is counted, as only large bodies are; seldom, since they take a millisecond.
LARGE_SHARE = 0.0005
_LARGE = (b"{}", b"[", b'"",', b'"a":1,', b"0,", b'\\"', b" ", b'{"a":')


@attrs.frozen
class Said:
    """A body or a message, and who reads it."""

    kind: str
    data: bytes


@attrs.frozen
class Readers:
    """Decodes and reads; canaries put others in their place."""

    read: Callable[[str, JsonObject], object]
    decode: Callable[[bytes], JsonObject] = decode_object


def _draw_said(chance: Random) -> Said:
    """Good ones with changes of structure, with texts that are no JSON, with spoiled bytes."""
    kind = chance.choice(list(KINDS))
    value = {k: v for k, v in chance.choice(KINDS[kind][1]).items() if v is not None}
    if kind in TOOLS and chance.random() < 0.3:
        schema = mutate_json(chance, chance.choice(SCHEMAS), names=KEYWORDS)
        value["tools"] = [TOOLS[kind](schema)]
    elif chance.random() < 0.75:
        value = mutate_json(chance, value, names=NAMES)
    data = msgspec.json.encode(value)
    if chance.random() < 0.15:
        places = [i for i, byte in enumerate(data) if byte in b":,["]
        place = chance.choice(places) + 1 if places else 0
        data = data[:place] + chance.choice(ODD_TEXTS) + data[place + chance.randrange(3) :]
    if chance.random() < 0.1:
        data = mutate(chance, data)
    if chance.random() < LARGE_SHARE:
        large = chance.choice(_LARGE)
        data = data[:-1] + b',"x":[' + large * (2 * COUNTED_FROM_BYTES // len(large)) + b"]}"
    if chance.random() < 0.05:
        data = chance.choice((b"\xef\xbb\xbf", b"\xff\xfe", b" \n\t", b"\0")) + data
    return Said(kind, data)


def check(events: Sequence[Said], readers: Readers) -> Counter[str]:
    """Decode and read each; see the module's invariant."""
    reached: Counter[str] = Counter()
    for event in events:
        try:
            value = readers.decode(event.data)
        except ApiError as error:
            _check_refusal(error)
            reached["no JSON"] += 1
            continue
        written = msgspec.json.encode(value)
        again = readers.decode(written)
        assert again == value, (value, again)
        what = _read(event.kind, value, readers)
        assert msgspec.json.encode(value) == written, "its reader changed it"
        other = _read(event.kind, again, readers)
        assert repr(what) == repr(other), (what, other)
        is_refused = isinstance(what, ApiError)
        reached[f"{event.kind}: {'refused' if is_refused else 'read'}"] += 1
    return reached


def _read(kind: str, value: JsonObject, readers: Readers) -> object:
    try:
        return readers.read(kind, value)
    except ApiError as error:
        _check_refusal(error)
        return error


def _check_refusal(error: ApiError) -> None:
    assert 400 <= error.status < 500, error
    assert error.message, error
    assert error.code, error
    msgspec.json.encode(error.body())


def _read_by_kind(kind: str, value: JsonObject) -> object:
    return KINDS[kind][0](value)


# ---- planted faults


def _read_using_up(kind: str, value: JsonObject) -> object:
    """Planted: a reader takes fields out of what it was given."""
    read = _read_by_kind(kind, dict(value))
    value.popitem()
    return read


FUZZER = Fuzzer[Said, Readers](
    name="bodies",
    invariant="JSON is refused by name, or says the same when it is written and read again",
    draw=each(_draw_said),
    check=check,
    target=Readers(_read_by_kind),
    faults={
        "what is wrong comes up as the library says it": Readers(
            _read_by_kind, bare(decode_object, ApiError)
        ),
        "a reader uses up what it reads": Readers(_read_using_up),
    },
    round_events=1000,
    smoke_rounds=4,
    reaches=frozenset(
        {"no JSON", *(f"{kind}: {what}" for kind in KINDS for what in ("read", "refused"))}
    ),
    event_s_max=2.0,
)
