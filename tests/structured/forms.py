"""Forms that answers are asked for: made by hand for every keyword, and drawn by a generator.

What an answer must match is said twice: for the runtime as a `StructuredOutputs`, for the check as
a predicate of `jsonschema` or `re`, which know nothing of masks.
"""

import decimal
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import jsonschema

from triolet.engine.errors import EngineError
from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.runtime.frontend.generation import Generator

PROMPT = "Tell me something about a dog, please. Answer:"
# The bundled model's length allows no more.
TOKENS_MAX = 900
DRAWN = 120
SEED = 4
# Strings and arrays are bounded, or a model of random weights would hardly ever end them.
LETTERS = {"type": "string", "maxLength": 12}

Json = dict[str, Any]


@attrs.frozen
class Form:
    """One form, and whether a text has it."""

    name: str
    wanted: StructuredOutputs
    matches: Callable[[str], bool]


def all_forms() -> list[Form]:
    """Made by hand, then drawn; always the same."""
    rng = random.Random(SEED)
    schemas = [*SCHEMAS, *(_draw_schema(rng, 3) for _ in range(DRAWN))]
    found = [json_form(f"schema {i}", schema) for i, schema in enumerate(schemas)]
    found += [_regex_form(pattern) for pattern in PATTERNS]
    found += [_choice_form(choices) for choices in CHOICES]
    found += [
        Form("grammar lark", StructuredOutputs.grammar(_SUMS), _matcher(r"\d+([+*-]\d+)*")),
        Form("grammar gbnf", StructuredOutputs.grammar(_LIST), _matcher(r"\[[a-z]+(,[a-z]+)*\]")),
        Form("json_object", StructuredOutputs.json_object(), _is_object),
    ]
    return found


_SUMS = 'start: N (OP N)~0..5\nN: /[0-9]{1,4}/\nOP: "+" | "-" | "*"'.replace("~0..5", "{0,5}")
_LIST = 'root ::= "[" word ("," word){0,4} "]"\nword ::= [a-z]{1,8}'


def json_form(name: str, schema: Json | bool) -> Form:
    # In decimals: 0.29 is a multiple of 0.01, which floats deny.
    exact = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
    validator = jsonschema.Draft202012Validator(
        exact, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )

    def matches(text: str) -> bool:
        try:
            value = json.loads(text, parse_float=decimal.Decimal)
        except ValueError:
            return False
        return bool(validator.is_valid(value))

    return Form(name, StructuredOutputs.json(schema), matches)


def _matcher(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def _regex_form(pattern: str) -> Form:
    return Form(f"regex {pattern}", StructuredOutputs.regex(pattern), _matcher(pattern))


def _choice_form(choices: list[str]) -> Form:
    return Form(f"choice {choices[0]}", StructuredOutputs.choice(choices), choices.__contains__)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _closed(properties: Json, **more: Any) -> Json:
    """An object with exactly these properties."""
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed, **more}


_TREE = {
    "$defs": {
        "node": _closed(
            {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            }
        )
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: list[Json | bool] = [
    {"type": "integer"},
    {"type": "number", "multipleOf": 0.001},
    {"type": "boolean"},
    {"type": "null"},
    LETTERS,
    {"type": "integer", "minimum": 3, "maximum": 17},
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.0001},
    {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25, "multipleOf": 0.01},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
    {"type": "string", "pattern": "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$"},
    {"type": "string", "pattern": "b{2}", "maxLength": 6},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "duration"},
    {"type": "string", "format": "email", "maxLength": 40},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"},
    {"type": "string", "format": "uuid"},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, 2.5, None, True, "a", [1], {"b": 2}]},
    {"const": "only this"},
    {"const": {"a": [1, 2, {"b": None}]}},
    {"type": "string", "enum": ["\u00e9t\u00e9", "\u96ea", "quote \" and \\ slash", ""]},
    {"anyOf": [{"type": "integer"}, LETTERS]},
    {"anyOf": [_closed({"cat": LETTERS}), _closed({"dog": {"type": "integer"}})]},
    {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    {
        "oneOf": [
            _closed({"kind": {"const": "a"}, "x": {"type": "integer"}}),
            _closed({"kind": {"const": "b"}, "y": {"type": "boolean"}}),
        ]
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    {"allOf": [_closed({"a": {"type": "integer"}}), {"properties": {"a": {"minimum": 5}}}]},
    {"type": ["integer", "null"]},
    {"type": ["boolean", "array"], "items": {"type": "null"}, "maxItems": 2},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": LETTERS, "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "integer"}, LETTERS], "items": False,
     "minItems": 2},
    {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"},
     "maxItems": 3},
    {"type": "array", "items": _closed({"a": {"type": "boolean"}}), "minItems": 1, "maxItems": 2},
    _closed({}),
    _closed({"name": LETTERS, "age": {"type": "integer", "minimum": 0, "maximum": 120}}),
    _closed({"a": _closed({"b": _closed({"c": _closed({"d": {"type": "null"}})})})}),
    {**_closed({"a": {"type": "integer"}, "b": LETTERS}), "required": ["b"]},
    {**_closed({f"p{i}": {"type": "boolean"} for i in range(6)}), "required": []},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
    {"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1,
     "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x_[a-z]{1,3}$": {"type": "boolean"}},
     "additionalProperties": False, "maxProperties": 2},
    _closed({"\u00fc \"quoted\"\n": {"type": "boolean"}, "": {"type": "null"}}),
    {"$defs": {"s": LETTERS}, **_closed({"a": {"$ref": "#/$defs/s"}, "b": {"$ref": "#/$defs/s"}})},
    {"definitions": {"n": {"type": "integer"}}, "type": "array", "maxItems": 2,
     "items": {"$ref": "#/definitions/n"}},
    _TREE,
    {"$ref": "#/$defs/list", "$defs": {"list": {"anyOf": [{"type": "null"},
     _closed({"next": {"$ref": "#/$defs/list"}})]}}},
    _closed({"first": {"type": "integer"}, "again": {"$ref": "#/properties/first"}}),
    {"title": "T", "description": "D", "default": 1, "examples": [2], "type": "integer",
     "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/t"},
    _closed({
        "id": {"type": "string", "format": "uuid"},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["x", "y", "z"]}, "maxItems": 3},
        "address": _closed({"street": LETTERS, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}),
        "score": {"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.1},
        "parent": {"anyOf": [{"type": "null"}, LETTERS]},
    }),
]  # fmt: skip
PATTERNS = [
    "a", "a*b", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "(yes|no|maybe)", "[A-Z]{3}[0-9]{3}", "x{2,5}y?",
    "(ab|cd){1,3}", "[^a-z]{1,4}", "\\d{3}", "\\w{1,8}", "[a-f0-9]{8}(-[a-f0-9]{4}){3}",
    "(\\+1 )?\\(\\d{3}\\) \\d{3}-\\d{4}", "#[0-9a-fA-F]{6}", "(mon|tues|wednes)day", ".{1,10}",
    "(?i)hello", "[\\w.]{1,10}@[a-z]{1,10}\\.(com|org)", "-?(0|[1-9][0-9]{0,6})(\\.[0-9]{1,4})?",
    "(a(b(c)?)?)?d", "[\u00e0-\u00ff]{1,5}", "(\u65e5|\u672c){1,3}", "\\$[0-9]{1,3}\\.[0-9]{2}",
    "([01][0-9]|2[0-3]):[0-5][0-9]", "v\\d\\.\\d\\.\\d(-(alpha|beta))?", "\\[(a,){0,3}a\\]",
    "Answer: (yes|no)\\. Because [a-z ]{5,20}\\.", "line one\\nline two", "\\x41\\x42", "[\\s]{2}",
]  # fmt: skip
CHOICES = [
    ["one", "two", "three"],
    ["positive", "negative", "neutral"],
    ["a", "ab", "abc", "abcd"],
    ['quote "', "back\\slash", "tab\t", "line\nbreak"],
    ["\u00e9", "\U0001f600", "\u96ea"],
    [f"option {number}" for number in range(200)],
]


def _draw_schema(rng: random.Random, depth: int) -> Json:
    kinds = [_draw_string, _draw_number, _draw_enum]
    if depth:
        kinds += [_draw_object, _draw_object, _draw_array, _draw_any]
    return rng.choice(kinds)(rng, depth)


def _draw_string(rng: random.Random, depth: int) -> Json:
    shortest = rng.randrange(4)
    choices: Iterator[Json] = iter(
        [
            {"type": "string", "minLength": shortest, "maxLength": shortest + rng.randrange(1, 12)},
            {
                "type": "string",
                "pattern": rng.choice(["^[a-z]{1,6}$", "^[A-Z0-9]{2,4}$", "^x+y?$"]),
            },
            {"type": "string", "format": rng.choice(["date", "time", "uuid", "ipv4"])},
        ]
    )
    return rng.choice(list(choices))


def _draw_number(rng: random.Random, depth: int) -> Json:
    least = rng.randrange(-1000, 1000)
    bounds = {"minimum": least, "maximum": least + rng.randrange(1, 5000)}
    # Digits have no end but by a multiple, and a model may like one digit for ever.
    kind: Json = rng.choice([{"type": "integer"}, {"type": "number", "multipleOf": 0.01}])
    return {**kind, **bounds}


def _draw_enum(rng: random.Random, depth: int) -> Json:
    values: list[Any] = [None, True, 3, -1.5, "text", "", [1, 2], {"k": "v"}]
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randrange(1, 5))}


def _draw_object(rng: random.Random, depth: int) -> Json:
    names = [f"{rng.choice(['id', 'name', 'kind', 'a b'])}{i}" for i in range(rng.randrange(1, 5))]
    properties = {name: _draw_schema(rng, depth - 1) for name in names}
    required = [name for name in names if rng.random() < 0.6]
    return {**_closed(properties), "required": required}


def _draw_array(rng: random.Random, depth: int) -> Json:
    least = rng.randrange(3)
    bounds = {"minItems": least, "maxItems": least + rng.randrange(3)}
    return {"type": "array", "items": _draw_schema(rng, depth - 1), **bounds}


def _draw_any(rng: random.Random, depth: int) -> Json:
    return {"anyOf": [_draw_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


@attrs.frozen
class Verdict:
    """One answer; `problem` is empty if it is valid."""

    name: str
    text: str
    tokens: int
    problem: str = ""
    # No end by `TOKENS_MAX`: not whole, so neither valid nor invalid.
    is_cut: bool = False

    @property
    def is_valid(self) -> bool:
        return not self.problem


async def ask(runtime: Generator, form: Form, seed: int) -> Verdict:
    """One answer at temperature 1."""
    params = SamplingParams(
        temperature=1.0,
        top_p=1.0,
        seed=seed,
        max_tokens=TOKENS_MAX,
        structured_outputs=form.wanted,
    )
    try:
        async with runtime.generate(PROMPT, params) as stream:
            await stream.collect()
    except EngineError as error:
        return Verdict(form.name, "", 0, f"refused: {error}")
    problem = ""
    if stream.finish_reason is not FinishReason.STOP:
        problem = f"ended by {stream.finish_reason}"
    elif not form.matches(stream.text):
        problem = "does not match"
    is_cut = stream.finish_reason is FinishReason.LENGTH
    return Verdict(form.name, stream.text, len(stream.token_ids), problem, is_cut)
