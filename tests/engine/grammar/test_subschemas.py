"""Names of properties are no keywords, wherever they stand."""

import json
from typing import Any

import pytest

from triolet.engine.grammar.subschemas import rewritten, values_of
from triolet.engine.grammar.text import check_grammar, lark_text
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.tests.engine.grammar.drawn import drawn

NAMES = ["default", "enum", "const", "examples", "patternProperties", "properties", "required",
         "pattern", "format", "minimum", "multipleOf", "$ref", "$defs", "items", "x-guidance",
         "dependentRequired", "uniqueItems", "type", "allOf", "plain"]  # fmt: skip
PARTS: list[Any] = [
    {"type": "string", "format": "zip"},
    {"type": "array", "items": {"type": "null"}, "maxItems": 1, "uniqueItems": False},
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^\\d{2}$"},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "object", "properties": {"b": {"const": 1}}, "patternProperties": {}},
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keyword", ["properties", "$defs"])
def test_a_schema_is_the_same_under_any_name(name: str, keyword: str) -> None:
    for part in PARTS:

        def named(each: str, part: Any = part) -> Any:
            if keyword == "properties":
                return {"type": "object", "properties": {each: part}}
            return {"$defs": {each: part}, "$ref": f"#/$defs/{each}"}

        check_grammar(StructuredOutputs.json(named(name)))
        plain = lark_text(StructuredOutputs.json(named("a name")))
        assert lark_text(StructuredOutputs.json(named(name))) == plain.replace("a name", name)


def test_data_is_not_touched() -> None:
    data = {"format": "time", "pattern": "\\d", "uniqueItems": False, "default": 1}
    lark = lark_text(StructuredOutputs.json({"anyOf": [{"const": data}, {"enum": [data]}]}))
    assert lark.count(json.dumps(data)) == 2
    assert drawn({"const": data}, [1]) != [None]


def test_each_schema_is_changed_once_and_no_data() -> None:
    seen = list[Any]()

    def change(schema: dict[str, Any]) -> dict[str, Any]:
        seen.append(schema)
        return schema

    data = {"properties": {"default": {"const": {"a": 1}}}, "default": {"b": 2}}
    assert rewritten(data, change) == data
    assert seen == [{"const": {"a": 1}}, data]


def test_keywords_are_told_from_names() -> None:
    schema = {"properties": {"multipleOf": {"multipleOf": 3}}, "const": {"$ref": "a"}}
    keywords = [(keyword, name) for _, keyword, name, _ in values_of(schema)]
    assert ("", "multipleOf") in keywords
    assert ("multipleOf", "multipleOf") in keywords
    assert ("$ref", "$ref") not in keywords
    assert ("", "$ref") in keywords
