"""Reasoning in chat messages, whole and streamed, and what requests give to chat templates."""

from typing import Any

import attrs
import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.chat import ChatMessages
from triolet.api.openai.chat_requests import ChatRequest, read_chat_request
from triolet.api.openai.responses_request import ResponseRequest, read_response_request
from triolet.api.openai.template_arguments import ARGUMENT_CHARACTERS_MAX, ARGUMENTS_MAX
from triolet.api.openai.tokenizer_request import read_tokenize_request
from triolet.api.openai.tool_use import ToolUse
from triolet.runtime.text.answer_format import AnswerFormat
from triolet.runtime.text.prompts import ChatPrompt

from ..answers import THINKING, THINKING_CALLS, TOOLS

TEXT = "<think>\nHm, hm.\n</think>\n\nYes."
SHOWN = {"reasoning_content": "Hm, hm.", "reasoning": "Hm, hm."}
MESSAGES = [{"role": "user", "content": "hi"}]
SWITCHED = attrs.evolve(THINKING, variables=frozenset({"enable_thinking"}))


def messages_of(
    answers: AnswerFormat = THINKING, *, is_open: bool = False, shows: bool = True
) -> ChatMessages:
    tools = attrs.evolve(TOOLS if answers.tools else ToolUse(), answer_format=answers)
    return ChatMessages("chatcmpl_1", tools, is_open, shows)


def test_a_whole_message_has_its_reasoning_apart() -> None:
    head = {"role": "assistant", "refusal": None}
    assert messages_of().message(0, TEXT) == {**head, "content": "Yes.", **SHOWN}
    nothing = {"reasoning_content": None, "reasoning": None}
    assert messages_of().message(0, "Yes.") == {**head, "content": "Yes.", **nothing}
    assert messages_of(shows=False).message(0, TEXT) == {**head, "content": "Yes."}
    assert messages_of(is_open=True).message(0, "Hm, hm.</think>Yes.")["reasoning"] == "Hm, hm."


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_deltas_add_up_to_the_message(size: int) -> None:
    call = '\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    messages, found = messages_of(THINKING_CALLS), dict[str, str]()
    text = TEXT + call
    for begin in range(0, len(text), size):
        is_last = begin + size >= len(text)
        delta: Any = messages.delta(0, text[begin : begin + size], is_last=is_last)
        for part in delta.pop("tool_calls", []):
            name = part["function"].get("name", "")
            found["call"] = found.get("call", "") + name + part["function"]["arguments"]
        for name, piece in delta.items():
            found[name] = found.get(name, "") + piece
    assert found == {"content": "Yes.", **SHOWN, "call": "f{}"}
    assert messages.finish_reason(0, "stop") == "tool_calls"


# ---- what templates are given


def chat(answers: AnswerFormat = SWITCHED, **values: Any) -> ChatRequest:
    return read_chat_request({"messages": MESSAGES, **values}, model="m", answer_format=answers)


def response(**values: Any) -> ResponseRequest:
    return read_response_request({"input": "hi", **values}, model="m", answer_format=SWITCHED)


GIVEN: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({}, None),
    ({"enable_thinking": False}, {"enable_thinking": False}),
    ({"enable_thinking": None, "reasoning_effort": None, "chat_template_kwargs": None}, None),
    ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
    ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
    (
        {"reasoning_effort": "none", "enable_thinking": True},
        {"reasoning_effort": "none", "enable_thinking": True},
    ),
    (
        {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False, "a": 1.5}},
        {"enable_thinking": False, "a": 1.5},
    ),
    ({"chat_template_kwargs": {"x": None, "y": "z"}}, {"x": None, "y": "z"}),
]


@pytest.mark.parametrize(("values", "arguments"), GIVEN, ids=str)
def test_the_most_explicit_argument_wins(
    values: dict[str, Any], arguments: dict[str, Any] | None
) -> None:
    prompt = chat(**values).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.arguments == arguments
    runtime = {k: v for k, v in values.items() if k != "reasoning_effort"}
    asked = response(reasoning={"effort": values.get("reasoning_effort")}, runtime=runtime)
    assert asked.template_arguments == arguments


def test_a_template_that_does_not_ask_gets_no_order_to_think() -> None:
    prompt = chat(THINKING, enable_thinking=False).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.arguments is None
    values: dict[str, Any] = {"messages": MESSAGES, "chat_template_kwargs": {"a": 1}}
    tokenized = read_tokenize_request(values, model="m").prompt
    assert isinstance(tokenized, ChatPrompt)
    assert tokenized.arguments == {"a": 1}


@pytest.mark.parametrize(
    ("arguments", "place", "reason"),
    [
        ({"a": []}, ".a", "must be a string, a number, true, false or null"),
        ({"a": {"b": 1}}, ".a", "must be a string, a number"),
        ({"messages": "x"}, ".messages", "is not an argument"),
        ({"tools": None}, ".tools", "is not an argument"),
        ({"bos_token": "x"}, ".bos_token", "is not an argument"),
        ({"__class__": 1}, ".__class__", "must be named"),
        ({"a b": 1}, ".a b", "must be named"),
        ({"a": "x" * (ARGUMENT_CHARACTERS_MAX + 1)}, ".a", "characters"),
        ({f"a{i}": 1 for i in range(ARGUMENTS_MAX + 1)}, "", "at most"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_no_other_values_reach_a_template(arguments: Any, place: str, reason: str) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        chat(chat_template_kwargs=arguments)
    assert (caught.value.status, caught.value.param) == (400, f"chat_template_kwargs{place}")
    with pytest.raises(ApiError) as caught:
        response(runtime={"chat_template_kwargs": arguments})
    assert caught.value.param == f"runtime.chat_template_kwargs{place}"


def test_reasoning_is_asked_for_in_its_two_forms() -> None:
    assert response().reasoning == {"effort": None, "summary": None}
    asked = response(reasoning={"effort": "high", "generate_summary": "auto"})
    assert asked.reasoning == {"effort": "high", "summary": "auto"}
    with pytest.raises(ApiError, match="must be one of auto, concise, detailed"):
        response(reasoning={"summary": "long"})
    assert not chat(include_reasoning=False).with_reasoning


def test_the_reasoning_of_earlier_turns_reaches_the_template() -> None:
    turn = {"role": "assistant", "content": "Yes.", "reasoning": "Hm."}
    prompt = read_chat_request({"messages": [*MESSAGES, turn]}, model="m").prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[-1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
        "thinking": "Hm.",
    }


def test_text_before_a_call_has_its_reasoning_by_one_name() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "So:", "reasoning": "Hm.", "tool_calls": [call]}
    prompt = read_chat_request({"messages": [*MESSAGES, turn]}, model="m").prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[-1]["reasoning_content"] == "Hm."
    assert "thinking" not in prompt.messages[-1]
    assert prompt.messages[-1]["tool_calls"][0]["id"] == "call_1"


def test_a_reasoning_item_belongs_to_what_follows_it() -> None:
    whole = {"type": "reasoning_text", "text": "Hm."}
    short = {"type": "summary_text", "text": "H"}
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
    asked = response(
        input=[
            *MESSAGES,
            {"type": "reasoning", "summary": [short], "content": [whole]},
            call,
            call,
            {"type": "function_call_output", "call_id": "c", "output": "1"},
            {"type": "reasoning", "summary": [short]},
            {"type": "message", "role": "assistant", "content": "So:"},
            call,
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"role": "user", "content": "And?"},
        ]
    )
    first, second = asked.input[1], asked.input[3]
    assert (first["reasoning_content"], first["thinking"]) == ("Hm.", "Hm.")
    assert len(first["tool_calls"]) == 2
    assert (second["content"], second["reasoning_content"]) == ("So:", "H")
    assert "thinking" not in second
    assert [message["role"] for message in asked.input].count("assistant") == 2


def test_marks_that_are_special_tokens_have_text() -> None:
    special = attrs.evolve(THINKING, has_special_marks=True)
    assert not chat(special).sampling.skip_special_tokens
    assert chat(THINKING).sampling.skip_special_tokens
    calls = attrs.evolve(THINKING_CALLS, reasoning=None, has_special_marks=True)
    assert chat(calls).sampling.skip_special_tokens
    tool = {"type": "function", "function": {"name": "f"}}
    assert not chat(calls, tools=[tool]).sampling.skip_special_tokens
