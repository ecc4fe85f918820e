"""Messages, tools and output formats of all protocols: what is read, and what is refused."""

from typing import Any

import msgspec
import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.chat_requests import read_chat_request
from triolet.api.openai.completion_requests import read_completions_request
from triolet.api.openai.fields.message_fields import TOOL_CHOICE, TOOLS
from triolet.api.openai.response_tools import RESPONSE_TOOL_FIELDS
from triolet.api.openai.responses_request import read_response_request
from triolet.api.openai.tool_use import ToolChoiceValue, ToolUse
from triolet.engine.grammar.text import check_grammar
from triolet.engine.structured_outputs import GRAMMAR_CHARACTERS_MAX, StructuredOutputs
from triolet.runtime.text.prompts import ChatPrompt
from triolet.runtime.text.tool_calls import Tool, ToolChoice

from ..answers import CALLS

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}}
WEATHER = {"name": "weather", "description": "d", "parameters": PARAMETERS, "strict": False}
TOOL = {"type": "function", "function": WEATHER}
CLOCK = {"type": "function", "function": {"name": "clock"}}
DEEP = msgspec.json.decode('{"a":' * 900 + "1" + "}" * 900)
ASKED = {"role": "user", "content": "a"}


def read(**values: Any) -> Any:
    return read_chat_request({"messages": [ASKED], **values}, model="m", answer_format=CALLS)


def only(mode: str, *tools: object) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def test_both_spellings_are_one() -> None:
    expected = (
        Tool("weather", PARAMETERS, "d"),
        Tool("clock", {"type": "object", "properties": {}}),
    )
    assert TOOLS.read([TOOL, CLOCK], "tools").tools == expected
    flat = [{"type": "function", **WEATHER}, {"type": "function", "name": "clock"}]
    kinds = {name: field.kind for name, field in RESPONSE_TOOL_FIELDS.items()}
    assert kinds["tools"].read(flat, "tools").tools == expected
    named = ToolChoiceValue(ToolChoice.REQUIRED, "clock")
    assert TOOL_CHOICE.read(CLOCK, "tool_choice") == named
    assert kinds["tool_choice"].read(flat[1], "tool_choice") == named


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
        (only("required", CLOCK), [TOOL, CLOCK], ["clock"]),
        (only("auto", TOOL), [TOOL, CLOCK], ["weather"]),
        ("auto", [{**TOOL, "function": {**WEATHER, "strict": True}}], ["weather"]),
    ],
    ids=["required", "named", "allowed, required", "allowed", "strict"],
)
def test_what_must_come_is_a_form(choice: object, tools: list[object], names: list[str]) -> None:
    form = read(tools=tools, tool_choice=choice).sampling.structured_outputs
    check_grammar(form)
    assert [name for name in ("weather", "clock") if name in form.text] == names


def test_all_tools_are_shown_where_some_are_allowed() -> None:
    asked = read(tools=[TOOL, CLOCK], tool_choice=only("auto", CLOCK))
    assert asked.prompt.tools == read(tools=[TOOL, CLOCK]).prompt.tools


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
            {"type": "function", "id": "c", "function": {"name": "weather", "arguments": {"a": 1}}}
        ],
    }
    assert read_back[2] == {"role": "tool", "content": "rain", "tool_call_id": "c"}


def test_a_template_without_tools_refuses_them() -> None:
    body = {"messages": [ASKED], "tools": [TOOL]}
    with pytest.raises(ApiError, match="tools: this model has no chat template"):
        read_chat_request(body, model="m")
    read_chat_request({**body, "tool_choice": "none"}, model="m")


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON = StructuredOutputs.json(SCHEMA)
FLAT = {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}
NESTED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
SHARED: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutputs.json_object()),
    ({"response_format": NESTED}, JSON),
    ({"structured_outputs": {"json": SCHEMA}}, JSON),
    ({"structured_outputs": {"json": JSON.text}}, JSON),
    ({"structured_outputs": {"regex": "a+", "json": None}}, StructuredOutputs.regex("a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputs.choice(["a", "b"])),
    ({"structured_outputs": {"grammar": "start: /a/"}}, StructuredOutputs.grammar("start: /a/")),
    ({"structured_outputs": {"json_object": True}}, StructuredOutputs.json_object()),
    ({"structured_outputs": {"json_object": False}}, None),
    ({"structured_outputs": {}}, None),
    (
        {"structured_outputs": {"regex": "a+", "disable_fallback": False, "choice": None}},
        StructuredOutputs.regex("a+"),
    ),
    ({"structured_outputs": {"json": False}}, StructuredOutputs.json("false")),
    ({"guided_json": SCHEMA}, JSON),
    ({"guided_regex": "a+"}, StructuredOutputs.regex("a+")),
    ({"guided_choice": ["a"]}, StructuredOutputs.choice(["a"])),
    ({"guided_grammar": "start: /a/"}, StructuredOutputs.grammar("start: /a/")),
    ({"runtime": {"structured_outputs": {"regex": "a+"}}}, StructuredOutputs.regex("a+")),
]


def nested(**values: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", **values}}


LONG = "a" * (GRAMMAR_CHARACTERS_MAX + 1)
SCHEMA_PATH = "response_format.json_schema.schema"
REFUSED: list[tuple[dict[str, Any], str]] = [
    (nested(), "response_format.json_schema"),
    (nested(json_schema={}), SCHEMA_PATH),
    (nested(json_schema={"schema": 3}), SCHEMA_PATH),
    (nested(json_schema={"schema": DEEP}), SCHEMA_PATH),
    ({"structured_outputs": {"json": DEEP}}, "structured_outputs.json"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    (
        {"structured_outputs": {"disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
    ),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": LONG}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"tools": [TOOL, TOOL]}, "tools[1]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": CLOCK}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": only("auto", TOOL, CLOCK)}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": only("none", TOOL)}, "tool_choice.allowed_tools.mode"),
    ({"tools": [TOOL], "tool_choice": only("auto")}, "tool_choice.allowed_tools.tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}},
     "tool_choice.allowed_tools"),
    ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": [CLOCK]}]},
     "messages[0].tool_calls"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
     "tools[0].function.parameters"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "form"), SHARED, ids=lambda value: str(value)[:50])
def test_chat_and_completions(values: dict[str, Any], form: StructuredOutputs | None) -> None:
    completion = read_completions_request({"prompt": "a", **values}, model="m")
    for request in (read(**values), completion):
        assert request.sampling.structured_outputs == form


@pytest.mark.parametrize(("values", "param"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused_names_the_field(values: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**values)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("values", "form", "name"),
    [
        ({"text": {"format": FLAT}}, JSON, "text.format"),
        (
            {"text": {"format": {"type": "json_object"}}},
            StructuredOutputs.json_object(),
            "text.format",
        ),
        ({"text": {"format": {"type": "text"}}}, None, "text.format"),
        ({"text": {"verbosity": "low"}}, None, "text.format"),
        (
            {"runtime": {"structured_outputs": {"regex": "a"}}},
            StructuredOutputs.regex("a"),
            "runtime.structured_outputs",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_responses(values: dict[str, Any], form: StructuredOutputs | None, name: str) -> None:
    request = read_response_request({"input": "a", **values}, model="m")
    assert request.sampling.structured_outputs == form
    if form is not None:
        assert request.names["structured_outputs"] == name
    assert request.text_format == values.get("text", {}).get("format", {"type": "text"})


def test_a_refusal_names_the_field_that_asked() -> None:
    request = read(response_format=NESTED)
    assert request.options.names["structured_outputs"] == "response_format"
    assert read().options.names["structured_outputs"] == "structured_outputs"
