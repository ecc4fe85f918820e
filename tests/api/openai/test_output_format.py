"""Each field that asks for a form of the answer, in each protocol, and what is refused."""

from typing import Any

import msgspec
import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import read_chat_request, read_completions_request
from triolet.api.openai.responses_request import read_response_request
from triolet.engine.structured_outputs import GRAMMAR_CHARACTERS_MAX, StructuredOutputs

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
DEEP = msgspec.json.decode('{"not":' * 900 + "{}" + "}" * 900)
LONG = "a" * (GRAMMAR_CHARACTERS_MAX + 1)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}},
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {"json": DEEP}}, "structured_outputs.json"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    (
        {"structured_outputs": {"disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
    ),
    ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
    ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": LONG}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
]


def chat(**values: Any) -> Any:
    return read_chat_request({"messages": [{"role": "user", "content": "a"}], **values}, model="m")


@pytest.mark.parametrize(("values", "form"), SHARED, ids=lambda value: str(value)[:50])
def test_chat_and_completions(values: dict[str, Any], form: StructuredOutputs | None) -> None:
    completion = read_completions_request({"prompt": "a", **values}, model="m")
    for request in (chat(**values), completion):
        assert request.sampling.structured_outputs == form


@pytest.mark.parametrize(("values", "param"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused_names_the_field(values: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**values)
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


def test_a_refusal_is_told_of_the_field_that_asked() -> None:
    request = chat(response_format=NESTED)
    assert request.options.names == {"structured_outputs": "response_format"}
    assert chat().options.names == {"structured_outputs": "structured_outputs"}
