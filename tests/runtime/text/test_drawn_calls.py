"""Tool calls drawn from the grammars of all formats: what a grammar allows, its parser reads."""

import json
from random import Random
from typing import Any

import jsonschema
import pytest

from triolet.engine.structured_outputs import StructuredOutputs
from triolet.runtime.text.tool_calls import Tool

from ...engine.grammar.drawn import drawn_of
from .test_answer_format import FAMILIES, format_of
from .turns import cut, read

SEEDS = 8
_WORD: dict[str, Any] = {"enum": ["Oslo", 'a "b"', "\u96ea\n"]}
_CITY: dict[str, Any] = {"city": _WORD, "days": {"type": "integer", "minimum": 0, "maximum": 9}}
_NAMED: dict[str, Any] = {"type": "object", "properties": _CITY, "required": ["city"]}
_NAME: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}},
                         "required": ["name"]}  # fmt: skip
_PAIR: dict[str, Any] = {"$defs": {"A": _NAMED, "B": _NAME}}
PARAMETERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "object": {"type": "object", "properties": {}},
    "properties": _NAMED,
    "no type": {"properties": _CITY, "required": ["city", "days"]},
    "reference": {**_PAIR, "$ref": "#/$defs/A"},
    "chain": {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": _NAMED}, "$ref": "#/$defs/A"},
    "null beside": {**_PAIR, "anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
    "alternatives": {**_PAIR, "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
    "free text": {"type": "object", "properties": {"text": {"type": "string"}},
                  "required": ["text"]},
    "optional text": {"type": "object", "required": ["text"], "properties": {
        "text": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    "mixed choices": {"type": "object", "required": ["x"], "properties": {
        "x": {"enum": ["yes", True, None, 7]}}},
    "constant": {"type": "object", "required": ["x"], "properties": {"x": {"const": "only"}}},
    "property by reference": {"$defs": {"C": _WORD, "N": {"type": "integer", "minimum": 1,
        "maximum": 5}}, "type": "object", "required": ["c", "n"],
        "properties": {"c": {"$ref": "#/$defs/C"}, "n": {"$ref": "#/$defs/N"}}},
    "optional choices": {**_PAIR, "type": "object", "required": ["x"], "properties": {
        "x": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}}},
    "lists": {"type": "object", "required": ["x"], "properties": {"x": {
        "type": "array", "items": {"type": "boolean"}, "maxItems": 3}}},
    "numbers": {"type": "object", "required": ["n", "x", "more"], "properties": {
        "n": {"type": "integer"}, "x": {"type": "number"},
        "more": {"type": "array", "items": {"type": ["number", "string"]}, "maxItems": 3}}},
}  # fmt: skip
# Ends of what would go on for long, and what they are mistaken for.
STEPS = (
    *('"', "}", "]", "\n</parameter>\n", "</parameter", "</tool_call>", "<", "null", "a\n\tb"),
    *("12345678901234567890123", "0.10000000000000000555", "-0", "1e999", "[", "\\ud83d\\ude00"),
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", PARAMETERS)
def test_what_a_grammar_allows_is_read_as_calls_that_satisfy_the_schema(
    family: str, kind: str
) -> None:
    parameters = PARAMETERS[kind]
    tools = [Tool("first", parameters), Tool("second", PARAMETERS["properties"])]
    schemas = {tool.name: {**tool.parameters, "type": "object"} for tool in tools}
    answer_format = format_of(family)
    wanted = StructuredOutputs.grammar(answer_format.forced(tools, calls_max=2))
    texts = [text for text in drawn_of(wanted, range(SEEDS), STEPS) if text is not None]
    assert len(texts) >= SEEDS // 4, "most are whole"
    for number, text in enumerate(texts):
        chance = Random(number)
        places = [chance.randrange(len(text) + 1) for _ in range(chance.randrange(9))]
        whole = read(answer_format.parser(tools, None, is_open=False, is_forced=True), [text])
        pieces = cut(text, places)
        parser = answer_format.parser(tools, None, is_open=False, is_forced=True)
        assert read(parser, pieces) == whole, text
        assert whole.calls, text
        assert whole.text == "", text
        for name, arguments in whole.calls:
            errors = jsonschema.Draft202012Validator(schemas[name]).iter_errors(arguments)
            assert not list(errors), (text, json.dumps(arguments))
