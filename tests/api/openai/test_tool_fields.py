"""Tools and choices of both protocols, calls in a conversation, and what is refused."""

from typing import Any

import msgspec
import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import read_chat_request
from triolet.api.openai.message_fields import ToolChoiceField, Tools
from triolet.api.openai.tool_use import Choice, ToolUse
from triolet.engine.grammar.text import check_grammar
from triolet.runtime.text.prompts import ChatPrompt
from triolet.runtime.text.tool_calls import Tool, ToolChoice

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}}
WEATHER = {"name": "weather", "description": "d", "parameters": PARAMETERS, "strict": False}
TOOL = {"type": "function", "function": WEATHER}
CLOCK = {"type": "function", "function": {"name": "clock"}}
DEEP = msgspec.json.decode('{"a":' * 900 + "1" + "}" * 900)
ASKED = {"role": "user", "content": "a"}


def read(**values: Any) -> Any:
    return read_chat_request({"messages": [ASKED], **values}, model="m", has_tools=True)


def test_both_spellings_are_one() -> None:
    expected = [
        Tool("weather", PARAMETERS, "d"),
        Tool("clock", {"type": "object", "properties": {}}),
    ]
    assert Tools().read([TOOL, CLOCK], "tools") == expected
    flat = [{"type": "function", **WEATHER}, {"type": "function", "name": "clock"}]
    assert Tools(is_flat=True).read(flat, "tools") == expected
    named = Choice(ToolChoice.REQUIRED, "clock")
    assert ToolChoiceField().read(CLOCK, "tool_choice") == named
    assert ToolChoiceField(is_flat=True).read(flat[1], "tool_choice") == named


def test_the_model_is_shown_tools_that_are_on() -> None:
    shown = read(tools=[TOOL]).prompt
    assert isinstance(shown, ChatPrompt)
    assert shown.tools is not None
    assert shown.tools[0]["function"]["name"] == "weather"
    assert read(tools=[TOOL], tool_choice="none").prompt.tools is None
    assert read(tools=[]).prompt.tools is None
    assert not ToolUse().is_on


@pytest.mark.parametrize(
    ("choice", "tools", "names"),
    [
        ("required", [TOOL, CLOCK], ["weather", "clock"]),
        (CLOCK, [TOOL, CLOCK], ["clock"]),
        ("auto", [{**TOOL, "function": {**WEATHER, "strict": True}}], ["weather"]),
    ],
    ids=["required", "named", "strict"],
)
def test_what_must_come_is_a_form(choice: object, tools: list[object], names: list[str]) -> None:
    form = read(tools=tools, tool_choice=choice).sampling.structured_outputs
    check_grammar(form)
    assert [name for name in ("weather", "clock") if name in form.text] == names


def test_nothing_must_come_without_a_choice() -> None:
    for choice in ("auto", "none"):
        assert read(tools=[TOOL], tool_choice=choice).sampling.structured_outputs is None


def test_a_turn_with_calls_and_results_is_as_templates_have_it() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"a":1}'}}
    messages = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    read_back = read(messages=messages).prompt.messages
    assert read_back[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"a": 1}}}
        ],
    }
    assert read_back[2] == {"role": "tool", "content": "rain", "tool_call_id": "c"}


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": CLOCK}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [CLOCK]}]},
         "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "{"}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        # What no UTF-8 can say again, and what only the end of the stack would stop.
        ({"messages": [{"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": r'{"a": "\ud800"}'}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": '{"a":' * 900 + "1" + "}" * 900}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
         "tools[0].function.parameters"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_refused_names_the_field(values: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**values)
    assert caught.value.param == param


def test_a_template_without_tools_refuses_them() -> None:
    body = {"messages": [ASKED], "tools": [TOOL]}
    with pytest.raises(ApiError, match="knows no tools"):
        read_chat_request(body, model="m", has_tools=False)
    read_chat_request({**body, "tool_choice": "none"}, model="m", has_tools=False)
