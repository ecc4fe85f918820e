"""Tools of Responses: what the model is shown, what its calls are to the client, and back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.openai.response_tools import CustomInput
from triolet.api.openai.responses_request import read_response_request
from triolet.api.responses.history import Conversation, with_output
from triolet.api.responses.record import ResponseRecord
from triolet.api.responses.record_reader import RecordReader

from ..answers import CALLS
from ..records import COMPLETED, check_invariants, make_events, make_request, say, taken

CLOCK = {"type": "function", "name": "clock", "strict": True}
PATCH = {"type": "custom", "name": "patch", "description": "Edits."}
WEB = {"type": "web_search", "external_web_access": False}
AGENTS = {"type": "namespace", "name": "agents_", "tools": [CLOCK, PATCH, WEB]}
TOOLS: list[dict[str, Any]] = [CLOCK, PATCH, AGENTS, WEB]
ALLOWED: dict[str, Any] = {"type": "allowed_tools", "mode": "auto"}


def read(**values: Any) -> Any:
    return read_response_request({"input": "x", **values}, model="toy", answer_format=CALLS)


def test_a_model_is_shown_functions_alone() -> None:
    use = read(tools=TOOLS).tools
    assert [tool.name for tool in use.tools] == [
        "clock", "patch", "agents__clock", "agents__patch"
    ]  # fmt: skip
    assert use.tools[1].parameters["required"] == ["input"]
    assert list(use.given.ignored) == ["web_search"] * 2
    objects = use.objects
    assert objects[1:] == TOOLS[1:]
    assert objects[0]["parameters"] == {"type": "object", "properties": {}}
    assert not read(tools=[WEB]).tools.is_on


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "clock"}, "clock"),
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "clock", "namespace": "agents_"}, "agents__clock"),
    ],
)
def test_a_choice_names_any_of_them(choice: dict[str, Any], name: str) -> None:
    use = read(tools=TOOLS, tool_choice=choice).tools
    assert use.choice.name == name
    assert use.choice_object == choice


def test_a_choice_allows_some_of_them() -> None:
    chosen = [{"type": "custom", "name": "patch"}, {"type": "function", "name": "clock"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [*chosen, WEB]}
    use = read(tools=TOOLS, tool_choice=choice).tools
    assert use.choice.names == ("patch", "clock")
    assert len(use.for_template or ()) == len(use.tools)
    # What is ignored among the tools is ignored here as well.
    assert use.choice_object == {**choice, "tools": chosen}


def test_a_regex_is_enforced_and_a_grammar_is_described() -> None:
    forms: Any = [
        {"type": "grammar", "syntax": "regex", "definition": "a|b"},
        {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
        {"type": "text"},
    ]
    tools = [{**PATCH, "name": f"t{place}", "format": form} for place, form in enumerate(forms)]
    regex, lark, text = read(tools=tools).tools.tools
    assert regex.parameters["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert lark.description == 'Edits.\n\nThe input matches this Lark grammar:\nstart: "a"'
    assert text.description == "Edits."
    assert all(tool.strict for tool in (regex, lark, text))


@pytest.mark.parametrize(
    ("values", "param", "words"),
    [
        ({"tools": [{"type": "nope"}]}, "tools[0].type", "must be `function`, `custom`"),
        ({"tools": [{"name": "a"}]}, "tools[0].type", "is missing"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1]", "same name as another tool, clock"),
        ({"tools": [{**AGENTS, "tools": [AGENTS]}]}, "tools[0].tools[0].type", "must be"),
        ({"tools": [{**AGENTS, "tools": [CLOCK] * 2}]}, "tools[0].tools[1]", "agents__clock"),
        ({"tools": [{**PATCH, "format": {"type": "x"}}]}, "tools[0].format.type", "text"),
        (
            {"tools": [{**PATCH, "format": {"type": "grammar", "definition": "a"}}]},
            "tools[0].format.syntax",
            "must be `lark` or `regex`",
        ),
        ({"tools": TOOLS, "tool_choice": WEB}, "tool_choice", "OpenAI's servers"),
        ({"tools": [WEB], "tool_choice": "required"}, "tool_choice", "needs `tools`"),
        ({"tools": TOOLS, "tool_choice": {"type": "x"}}, "tool_choice.type", "must be"),
        (
            {"tools": TOOLS, "tool_choice": {**ALLOWED, "tools": [WEB]}},
            "tool_choice.tools",
            "must name a function",
        ),
        (
            {"tools": TOOLS, "tool_choice": {**ALLOWED, "tools": [{"type": "x"}]}},
            "tool_choice.tools[0].type",
            "must be",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "none"}},
            "tool_choice",
            "function none is not among `tools`",
        ),
    ],
)
def test_what_is_refused(values: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        read(**values)
    assert caught.value.param == param


@pytest.mark.parametrize("forced", [True, False])
def test_parameters_that_cannot_be_enforced_are_refused(forced: bool) -> None:
    """Of a forced call and of a strict function; not as a fault of the server."""
    parameters = {"type": "object", "properties": {"x": {"enum": [-(2**63)]}}}
    tool = {"type": "function", "name": "f", "parameters": parameters, "strict": not forced}
    with pytest.raises(ApiError, match="does not hold exactly") as caught:
        read(tools=[tool], tool_choice="required" if forced else "auto").tools.form()
    assert (caught.value.status, caught.value.param) == (400, "tools")


@given(st.text(), st.data())
def test_an_input_is_read_however_its_arguments_are_cut(text: str, data: st.DataObject) -> None:
    whole = json.dumps({"input": text}, ensure_ascii=data.draw(st.booleans()))
    places = data.draw(st.lists(st.integers(0, len(whole)), max_size=9).map(sorted))
    reader, said = CustomInput(), ""
    for begin, end in zip([0, *places], [*places, len(whole)], strict=True):
        said += reader.push(whole[begin:end])
    assert said == text


@pytest.mark.parametrize("escaped", [r"\ud83dx", r"\ud83d\n", r"\udc00", r"\ud83d\u0041"])
def test_lone_surrogates_are_replaced(escaped: str) -> None:
    reader = CustomInput()
    said = "".join(map(reader.push, f'{{"input": "a{escaped}b"}}'))
    assert said[:2] == "a\ufffd"
    assert said[-1] == "b"
    said.encode()


ANSWER = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


def make_record(name: str, arguments: str) -> ResponseRecord:
    record = ResponseRecord(make_events(make_request(tools=TOOLS)))
    say(record, *(ANSWER % (name, arguments)))
    record.end(COMPLETED)
    return record


@pytest.mark.parametrize(
    ("name", "arguments", "call"),
    [
        ("patch", '{"input": "a\\nb"}', {"name": "patch", "input": "a\nb"}),
        ("agents__clock", "{}", {"name": "clock", "namespace": "agents_", "arguments": "{}"}),
        (
            "agents__patch",
            '{"input": ""}',
            {"name": "patch", "namespace": "agents_", "input": ""},
        ),
    ],
)
def test_a_call_is_what_the_client_knows_and_comes_back_as_the_model_made_it(
    name: str, arguments: str, call: dict[str, str]
) -> None:
    record = make_record(name, arguments)
    check_invariants(record)
    (item,) = record.calls
    kind = "custom_tool_call" if "input" in call else "function_call"
    assert (item["type"], item["status"]) == (kind, "completed")
    assert {name: item[name] for name in call} == call
    events = taken(RecordReader.behind(record))
    end = "input" if "input" in call else "arguments"
    deltas = [event["delta"] for event in events if str(event["type"]).endswith(f"{end}.delta")]
    assert "".join(map(str, deltas)) == call[end]
    (done,) = [event for event in events if str(event["type"]).endswith(f"{end}.done")]
    assert done[end] == call[end]
    wanted = {"name": name, "arguments": json.loads(arguments)}
    kept = with_output(Conversation(()), record).messages[0]["tool_calls"]
    assert [one["function"] for one in kept] == [wanted]
    sent = read_response_request({"input": [item]}, model="toy").input[0]["tool_calls"]
    assert sent == kept
