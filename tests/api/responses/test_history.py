"""Conversations that go on: messages with messages, token ids with token ids."""

import json
from typing import Any

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.response_events import Ending, Status
from triolet.api.openai.responses_request import read_response_request
from triolet.api.responses.history import (
    Conversation,
    continued,
    input_items,
    prompt_of,
    with_output,
)
from triolet.runtime.text.outputs import Usage
from triolet.runtime.text.prompts import ChatPrompt

from ..records import COMPLETED, make_record, make_request, say

USER = {"role": "user", "content": "hi"}
IDS: dict[str, Any] = {"runtime": {"input_token_ids": [1, 2]}}


def test_messages_go_on_without_earlier_instructions() -> None:
    record = make_record(instructions="Be brief")
    first = continued(None, record.events.request)
    assert prompt_of(first, "Be brief") == ChatPrompt(
        [{"role": "system", "content": "Be brief"}, USER]
    )
    say(record, "Hello")
    record.end(COMPLETED)
    said = with_output(first, record)
    second = continued(said, make_request(input="more", instructions="Be long"))
    assert prompt_of(second, None) == ChatPrompt(
        [USER, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "more"}]
    )
    assert second.size_bytes > first.size_bytes


def test_token_ids_go_on_exactly() -> None:
    request = read_response_request(IDS, model="toy")
    first = continued(None, request)
    assert prompt_of(first, None) == [1, 2]
    record = make_record(input=None, **IDS)
    say(record, "a", "b")
    assert continued(with_output(first, record), request).token_ids == [1, 2, 0, 1, 1, 2]


def test_a_response_without_output_adds_nothing() -> None:
    conversation = Conversation([USER])
    record = make_record(generate=False)
    assert with_output(conversation, record) == conversation


@pytest.mark.parametrize(
    ("before", "values", "param"),
    [
        (Conversation([USER]), IDS, "runtime.input_token_ids"),
        (Conversation((), [1]), {"input": "x"}, "input"),
    ],
)
def test_messages_and_ids_do_not_mix(
    before: Conversation, values: dict[str, object], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        continued(before, read_response_request(values, model="toy"))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1', {"unparsed": '{"a": 1'}),
        ('{"a": ' + "[" * 100_000, {"unparsed": '{"a": ' + "[" * 100_000}),
        (r'{"a": "\ud800"}', {"a": "\N{REPLACEMENT CHARACTER}"}),
        ('{"a": NaN}', {"a": "NaN"}),
    ],
)
def test_a_call_that_was_cut_or_is_no_json_goes_on_as_it_was(
    arguments: str, shown: dict[str, object]
) -> None:
    record = make_record(tools=[{"type": "function", "name": "clock"}])
    say(record, '<tool_call>\n{"name": "clock", "arguments": ' + arguments)
    record.end(Ending(status=Status.INCOMPLETE, usage=Usage(3, 1)))
    said = with_output(Conversation([USER]), record)
    (call,) = said.messages[-1]["tool_calls"]
    assert call["function"] == {"name": "clock", "arguments": shown}
    sent = record.calls
    assert read_response_request({"input": sent}, model="toy").input[0]["tool_calls"] == [call]
    (kept,) = [i for i in input_items(said, "resp_1") if i["type"] == "function_call"]
    written = arguments if "unparsed" in shown else json.dumps(shown, ensure_ascii=False)
    assert kept["arguments"] == written


def test_items_of_the_input() -> None:
    answer = {"role": "assistant", "content": "Hello"}
    one, two = input_items(Conversation([USER, answer]), "resp_00aa")
    assert (one["id"], one["role"], one["content"]) == (
        "msg_0_00aa", "user", [{"type": "input_text", "text": "hi"}]
    )  # fmt: skip
    assert two["id"] == "msg_1_00aa"
    assert two["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]
    assert input_items(Conversation((), [1, 2]), "resp_1") == []
