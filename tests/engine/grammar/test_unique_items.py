"""Arrays of unique items: what is allowed is unique, and all that is unique is allowed."""

import itertools
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from triolet.engine.errors import InvalidParameter
from triolet.engine.grammar.text import LIMITS, check_grammar, grammar_text
from triolet.engine.grammar.unique_items import ALTERNATIVES_MAX
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.tests.engine.grammar.drawn import drawn

_BYTES = LLTokenizer("byte")
_COLOUR: dict[str, Any] = {"enum": ["red", "green", "blue"], "title": "Colour", "type": "string"}
ITEMS: dict[str, Any] = {
    "enum": _COLOUR,
    "booleans": {"type": "boolean"},
    "null too": {"type": ["boolean", "null"]},
    "constant": {"const": "only"},
    "reference": {"$ref": "#/$defs/Colour"},
    "optional": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
    "labelled": {"oneOf": [{"const": 1, "title": "One"}, {"const": 2, "title": "Two"}]},
    "in one of them": {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]},
    "equal numbers": {"enum": [1, 1.0, True, "1", 2.5]},
    "some by type": {"type": "integer", "enum": [1, 2.0, 2.5, True, "1"]},
    "joined": {"$ref": "#/$defs/Colour", "enum": ["green", "red", "black"]},
    "objects": {"enum": [{"a": 1, "b": [0]}, {"b": [0.0], "a": 1.0}, [1], [True]]},
    "nothing": False,
}
# Values that some of these allow, and some that none does.
VALUES = ["red", "green", "blue", "only", "1", 1, 2, 2.5, 3, True, False, None, {"a": 1, "b": [0]}]
DRAFTS = ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]


def _set_of(items: Any, **more: Any) -> dict[str, Any]:
    defs = {"Colour": _COLOUR}
    return {"$defs": defs, "type": "array", "items": items, "uniqueItems": True, **more}


def _accepts(matcher: LLMatcher, text: str) -> bool:
    tried = matcher.deep_copy()
    tokens = list(text.encode())
    if tried.validate_tokens(tokens) < len(tokens):
        return False
    tried.consume_tokens(tokens)
    return bool(tried.is_accepting())


def _arrays(least: int, most: int) -> Iterator[list[Any]]:
    for count in range(least, most + 1):
        yield from map(list, itertools.product(VALUES, repeat=count))


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("kind", ITEMS)
def test_what_is_allowed_is_what_the_schema_says(kind: str, draft: str) -> None:
    if kind == "joined" and draft == DRAFTS[0]:
        return  # which lets nothing stand beside a reference
    chance = Random(kind)
    least = chance.randrange(2)
    bounds = {} if chance.random() < 0.5 else {"maxItems": least + chance.randrange(3)}
    schema = {"$schema": draft, **_set_of(ITEMS[kind], minItems=least, **bounds)}
    validator = jsonschema.validators.validator_for(schema)(schema)
    wanted = StructuredOutputs.json(schema)
    if least and ITEMS[kind] is False:
        with pytest.raises(InvalidParameter):
            check_grammar(wanted)
        return
    for text in drawn(schema, range(20)):
        assert text is not None
        validator.validate(json.loads(text))
    matcher = LLMatcher(_BYTES, grammar_text(wanted), log_level=0, limits=LIMITS)
    for array in (*_arrays(0, 2), *chance.sample(list(_arrays(3, 3)), 500)):
        valid = validator.is_valid(array)
        assert _accepts(matcher, json.dumps(array)) == valid, (schema, array)


def test_every_order_of_five_and_no_other_array() -> None:
    letters = "abcde"
    wanted = StructuredOutputs.json(_set_of({"enum": list(letters)}))
    check_grammar(wanted)
    matcher = LLMatcher(_BYTES, grammar_text(wanted), log_level=0, limits=LIMITS)
    for count in range(len(letters) + 2):
        for order in itertools.product(letters, repeat=min(count, 4)):
            array = [*order, *letters[: count - len(order)]]
            is_set = len({*array}) == len(array)
            assert _accepts(matcher, json.dumps(array)) == is_set, array


def test_schemas_beside_an_array_hold() -> None:
    nullable = {"type": ["array", "null"], "items": {"type": "boolean"}, "uniqueItems": True}
    schema = {
        "type": "object",
        "required": ["seen", "more"],
        "properties": {
            "seen": {**nullable, "minItems": 1},
            "more": {"allOf": [_set_of(_COLOUR), {"minItems": 2}], "maxItems": 2},
        },
    }
    validator = jsonschema.Draft202012Validator(schema)
    texts = drawn(schema, range(60))
    answers = [json.loads(text) for text in texts if text is not None]
    for answer in answers:
        validator.validate(answer)
    assert {json.dumps(answer["seen"]) for answer in answers} == {
        "null", "[true]", "[false]", "[true, false]", "[false, true]",
    }  # fmt: skip
    assert len({json.dumps(answer["more"]) for answer in answers}) == 6


def test_what_says_nothing_is_dropped() -> None:
    for most in (0, 1):
        assert drawn(_set_of({"type": "string", "maxLength": 3}, maxItems=most), [1]) != [None]
    assert drawn({"type": "array", "uniqueItems": False, "maxItems": 2, "items": {}}, [1])


REFUSED = [
    _set_of({"type": "string"}),
    _set_of({"type": "integer"}),
    _set_of({"anyOf": [_COLOUR, {"type": "string"}]}),
    _set_of({**_COLOUR, "pattern": "r"}),
    _set_of({"enum": list(range(6))}),
    _set_of({"$ref": "#/$defs/Nobody"}),
    _set_of({"$ref": "#/items"}),
    _set_of(_COLOUR, prefixItems=[{}]),
    {"type": "array", "items": [_COLOUR], "uniqueItems": True},
    {"uniqueItems": True},
    # The same schemas again and again, and arrays that are few alternatives each.
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 200},
               "b": {"anyOf": [{"$ref": "#/$defs/c"}] * 200}, "c": {"enum": [1, 2]}},
     "items": {"$ref": "#/$defs/a"}, "uniqueItems": True},
    {"properties": {str(place): _set_of({"enum": list("abcd")}) for place in range(20)}},
    {"$id": "http://a/b", "properties": {"x": {"$id": "c", **_set_of({"$ref": "#/$defs/Colour"})}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", REFUSED)
def test_what_cannot_be_written_out_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="`uniqueItems` are not supported"):
        check_grammar(StructuredOutputs.json(schema))


def test_as_many_alternatives_as_a_schema_may_have_go_on_to_the_end() -> None:
    three = ALTERNATIVES_MAX // 120
    schema = {
        "anyOf": [
            {"type": "object", "required": ["a", "b"],
             "properties": {"a": _set_of({"enum": list("abcde")}), "b": {"const": place}}}
            for place in range(three)
        ]
    }  # fmt: skip
    texts = [text for text in drawn(schema, range(20)) if text is not None]
    assert len({json.loads(text)["b"] for text in texts}) == three
