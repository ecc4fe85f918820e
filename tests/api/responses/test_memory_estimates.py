"""What is counted for what is kept is about what it takes: the bound on memory stands on it."""

import gc
import tracemalloc
from typing import Any

import msgspec
import pytest

from triolet.api.openai.responses_request import read_response_request
from triolet.api.responses.history import continued
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.response import Response, ResponseOrder
from triolet.api.settings import ServerLimits
from triolet.api.streams.store import StreamStore

from ..answers import CALLS
from ..fakes import FakeGenerator
from ..records import COMPLETED, make_events, make_store, say

RESPONSES, GENERATOR = 4, FakeGenerator()
TOOL = {"type": "function", "name": "f", "parameters": {"enum": list(range(1000, 3000))}}
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"enum": list(map(str, range(3000)))}}
# One object a word, as a vocabulary has.
WORDS = [f"w{number} " for number in range(10)]
KINDS: dict[str, dict[str, Any]] = {
    "a short one": {"input": "hi"},
    "a text": {"input": "x" * 50_000},
    "a text beyond ASCII": {"input": "\u3042" * 50_000},
    "messages": {"input": [{"role": "user", "content": "a"}] * 300},
    "calls": {
        "input": [{"type": "function_call", "name": "f", "arguments": '{"a": [1.5, {"b": 2}]}'}]
        * 200
    },
    "token ids": {"runtime": {"input_token_ids": list(range(1000, 9000))}},
    "instructions": {"input": "hi", "instructions": "x" * 50_000},
    "metadata": {"input": "hi", "metadata": {f"{i:064}": "x" * 512 for i in range(16)}},
    "allowed ids": {
        "input": "hi",
        "runtime": {"allowed_token_ids": list(range(1000, 30_000)), "bad_words": ["a" * 250] * 100},
    },
    "biases": {"input": "hi", "runtime": {"logit_bias": {str(i): 0.5 for i in range(1000)}}},
    "a form": {"input": "hi", "text": {"format": SCHEMA}},
    "tools": {"input": "hi", "tools": [TOOL], "tool_choice": "none"},
    "a long answer": {"input": "hi", "metadata": {"pieces": "3000"}},
    "a long answer in ids": {
        "input": "hi",
        "runtime": {"token_ids": True},
        "metadata": {"pieces": "3000"},
    },
    "a long answer with logprobs": {
        "input": "hi",
        "top_logprobs": 4,
        "metadata": {"pieces": "500"},
    },
    "a long answer with tools": {
        "input": "hi",
        "tools": [{"type": "function", "name": "f"}],
        "metadata": {"pieces": "1000"},
    },
    "a long answer with tools, ids and logprobs": {
        "input": "hi",
        "tools": [{"type": "function", "name": "f"}],
        "top_logprobs": 4,
        "runtime": {"token_ids": True},
        "metadata": {"pieces": "500"},
    },
}


def ended(store: StreamStore[Response], number: int, text: bytes) -> None:
    """What a response leaves behind whose body is this JSON; `pieces` tokens are said."""
    request = read_response_request(msgspec.json.decode(text), model="toy", answer_format=CALLS)
    record = ResponseRecord(make_events(request, f"resp_{number}"))
    name = record.events.response_id
    order = ResponseOrder(stream_id=name, principal="p", generator=GENERATOR, request=request)
    response = Response(order, record, continued(None, request))
    request.values = {}  # as its admission leaves it
    store.add(response)
    for piece in range(int(request.metadata.get("pieces", "1"))):
        say(record, WORDS[piece % 10])
    response.end(COMPLETED)
    store.end(response)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_counted_is_about_what_it_takes(kind: str) -> None:
    text = msgspec.json.encode(KINDS[kind])
    store = make_store(ServerLimits(ended_bytes_max=2**40))
    ended(store, RESPONSES, text)  # what is made once
    before_bytes = store.ended.size_bytes
    gc.collect()
    gc.freeze()  # what other tests have left takes a second to go through
    tracemalloc.start()
    for number in range(RESPONSES):
        ended(store, number, text)
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted = store.ended.size_bytes - before_bytes
    assert 0.8 * taken <= counted <= 12 * taken  # sizes of objects differ from Python to Python
