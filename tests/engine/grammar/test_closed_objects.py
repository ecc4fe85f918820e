"""Objects are closed where a schema lists their properties, and only where that forbids nothing."""

import copy
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from triolet.engine.errors import InvalidParameter
from triolet.engine.grammar.closed_objects import close_objects
from triolet.engine.grammar.text import check_grammar, grammar_text
from triolet.engine.structured_outputs import StructuredOutputs

Schema = dict[str, Any]
A: Schema = {"properties": {"a": {"type": "integer"}}}
B: Schema = {"properties": {"b": {"type": "integer"}}}
ONE_TREE: Schema = {
    "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}},
    "$ref": "#/$defs/Node",
}


def closed_places(schema: Schema) -> list[str]:
    """Pointers of the objects that are closed and were not."""
    changed = copy.deepcopy(schema)
    close_objects(changed)
    found: list[str] = []

    def compare(before: Any, after: Any, place: str) -> None:
        if isinstance(after, dict):
            if "additionalProperties" in after and "additionalProperties" not in before:
                found.append(place)
            for name, value in before.items():
                compare(value, after[name], f"{place}/{name}")
        elif isinstance(after, list):
            for number, (value, new) in enumerate(zip(before, after, strict=True)):
                compare(value, new, f"{place}/{number}")

    compare(schema, changed, "")
    return sorted(found)


CLOSED: list[tuple[Schema, list[str]]] = [
    (A, [""]),
    ({"type": "object"}, []),
    ({"properties": {}}, [""]),
    ({**A, "additionalProperties": True}, []),
    ({**A, "patternProperties": {"^x": {}}}, []),
    ({**A, "required": ["a"]}, [""]),
    ({**A, "required": ["other"]}, []),
    ({**A, "minProperties": 2}, []),
    ({"properties": {"properties": A}}, ["", "/properties/properties"]),
    ({"items": A}, ["/items"]),
    ({"anyOf": [A, B]}, ["/anyOf/0", "/anyOf/1"]),
    ({**A, "anyOf": [B]}, []),
    ({"allOf": [A]}, ["/allOf/0"]),
    ({"allOf": [A, B]}, []),
    ({"allOf": [{"properties": {"x": A}}, {"properties": {"x": B}}]}, []),
    ({"$defs": {"A": A}, "$ref": "#/$defs/A", "title": "T"}, ["/$defs/A"]),
    ({"$defs": {"A": A}, "$ref": "#/$defs/A", **B}, []),
    ({"$defs": {"A": A}, "properties": {"x": {"$ref": "#/$defs/A"}}}, ["", "/$defs/A"]),
    ({"$defs": {"A": A}, "allOf": [{"$ref": "#/$defs/A"}, B]}, []),
    (ONE_TREE, ["/$defs/Node"]),
    ({"default": A, "enum": [A]}, []),
    ({"required": "a", **A}, []),
]


@pytest.mark.parametrize(("schema", "places"), CLOSED, ids=str)
def test_each_schema_is_closed_where_it_may_be(schema: Schema, places: list[str]) -> None:
    assert closed_places(schema) == places


NAMES = st.sampled_from("abc")
LISTED = st.dictionaries(NAMES, st.just({"type": "integer"}), max_size=3)
OBJECTS = st.builds(
    lambda properties, required: {"properties": properties, "required": required},
    LISTED,
    st.lists(NAMES, max_size=1),
)
REFERENCES = st.sampled_from([{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}])
JOINED = st.recursive(
    OBJECTS | REFERENCES,
    lambda inner: (
        st.builds(lambda all_of: {"allOf": all_of}, st.lists(inner, min_size=1, max_size=2))
        | st.builds(lambda left, all_of: {**left, "allOf": [all_of]}, inner, inner)
        | st.builds(lambda part: {"properties": {"a": part}}, inner)
    ),
    max_leaves=4,
)


INSTANCES: list[Schema] = [
    {},
    {"a": 1},
    {"a": {}},
    {"a": {"b": 1}},
    {"a": 1, "b": 1},
    {"a": {"a": 1}},
]


@given(JOINED, OBJECTS, OBJECTS)
def test_whatever_lists_its_members_stays_valid(schema: Schema, x: Schema, y: Schema) -> None:
    """An instance whose members are required, or listed wherever they are, loses nothing."""
    before: Schema = {**copy.deepcopy(schema), "$defs": {"x": x, "y": y}}
    after = copy.deepcopy(before)
    close_objects(after)
    for instance in INSTANCES:
        needed = jsonschema.Draft202012Validator(before).is_valid(instance)
        is_listed = not list(unlisted(before, instance))
        if needed and is_listed:
            assert jsonschema.Draft202012Validator(after).is_valid(instance)


def unlisted(schema: Schema, instance: Any) -> list[str]:
    """Members that no part of the schema lists at their place."""
    listed = dict[str, list[Schema]]()
    waiting, seen = [schema], list[Schema]()
    while waiting:
        part = waiting.pop()
        if any(part is each for each in seen):
            continue
        seen.append(part)
        for name, value in part.get("properties", {}).items():
            listed.setdefault(name, []).append(value)
        waiting += part.get("allOf", [])
        if "$ref" in part:
            waiting.append(definition(schema, part["$ref"]))
    found = [name for name in instance if name not in listed]
    for name, value in instance.items():
        if isinstance(value, dict) and name in listed:
            inner: Schema = {"allOf": listed[name], "$defs": schema.get("$defs", {})}
            found += unlisted(inner, value)
    return found


def definition(schema: Schema, reference: str) -> Schema:
    target: Schema = schema["$defs"][reference.rpartition("/")[2]]
    return target


def matches(schema: Schema, text: str) -> bool:
    wanted = StructuredOutputs.json(schema)
    check_grammar(wanted)
    matcher = LLMatcher(LLTokenizer("byte"), grammar_text(wanted), log_level=0)
    return bool(matcher.consume_tokens(list(text.encode()))) and bool(matcher.is_accepting())


PAIR: Schema = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"items": {"type": "integer"}}},
    "required": ["a"],
}
TEXTS = [
    ('{"a": 1, "b": [1, 2]}', True),
    ('{"a":1,"b":[1,2]}', True),
    ('{"a":  1}', False),
    ('{ "a": 1}', False),
    ('{"a": 1}\n', False),
    ('{"a": 1, "c": 2}', False),
]


@pytest.mark.parametrize(("text", "is_good"), TEXTS)
def test_nothing_but_the_listed_and_one_space(text: str, is_good: bool) -> None:
    assert matches(PAIR, text) == is_good


@pytest.mark.parametrize("form", ["path", "password", "binary", "color", "idn-email"])
def test_an_unknown_format_is_an_annotation(form: str) -> None:
    assert matches({"type": "string", "format": form}, json.dumps("any text"))


@pytest.mark.parametrize("name", [["a"], {"a": 1}, 1, None])
def test_a_required_name_that_is_none_is_refused_by_name(name: object) -> None:
    wrong = {**A, "required": ["a", name]}
    assert closed_places(wrong) == []
    with pytest.raises(InvalidParameter, match="cannot be served"):
        check_grammar(StructuredOutputs.json(wrong))
