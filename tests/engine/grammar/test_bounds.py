"""What compiles within bounds passes; what would not is refused with a reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import InvalidParameter
from triolet.engine.grammar.bounds import (
    CASELESS_CLASSES_MAX,
    CHAIN_MAX,
    DEPTH_MAX,
    MULTIPLE_MAX,
    NAME_PATTERNS_MAX,
    NODES_MAX,
    PATTERNS_TOGETHER_MAX,
    RULES_MAX,
    check_lark,
    check_pattern,
    check_schema,
)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def chain(length: int) -> dict[str, Any]:
    links = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {"type": "null"}}}


def all_of(patterns: int) -> dict[str, Any]:
    return {"type": "string", "allOf": [{"pattern": f"a{index}"} for index in range(patterns)]}


def names(patterns: int) -> dict[str, Any]:
    return {"patternProperties": {f"^a{index}$": {} for index in range(patterns)}}


def caseless(classes: int) -> dict[str, Any]:
    return {"pattern": "(?i)" + "[a-f]" * classes}


# Depth of a chain's schema: the schema, $defs, the link, its items.
CHAIN_DEPTH = 5
ACCEPTED: list[object] = [
    True,
    {"type": "object"},
    nested(DEPTH_MAX),
    {"enum": list(range(NODES_MAX - 2))},
    chain(CHAIN_MAX // CHAIN_DEPTH - 1),
    {"anyOf": [{"multipleOf": MULTIPLE_MAX}, {"multipleOf": 0.25}, {"multipleOf": 1e9}]},
    {"multipleOf": -3},
    {"multipleOf": True},
    {"multipleOf": [None, "3"]},
    all_of(PATTERNS_TOGETHER_MAX),
    {"anyOf": all_of(100)["allOf"]},
    names(NAME_PATTERNS_MAX),
    caseless(CASELESS_CLASSES_MAX),
    {"pattern": "[a-f]" * (CASELESS_CLASSES_MAX + 1)},
    {"properties": {"multipleOf": {"type": "string"}, "$ref": {"type": "string"}}},
]
REFUSED: list[tuple[object, str]] = [
    ("text", "must be a JSON schema"),
    ([], "must be a JSON schema"),
    (nested(DEPTH_MAX + 1), "nested more than"),
    (nested(900), "nested more than"),
    ({"enum": list(range(NODES_MAX))}, "values"),
    (chain(CHAIN_MAX // CHAIN_DEPTH + 1), "distinct references"),
    ({"multipleOf": MULTIPLE_MAX + 1}, "multipleOf"),
    (all_of(PATTERNS_TOGETHER_MAX + 1), "patterns"),
    (names(NAME_PATTERNS_MAX + 1), "patternProperties"),
    (caseless(CASELESS_CLASSES_MAX + 1), "ignores the case"),
    ({"patternProperties": {"(?s-i)" + r"\PL" * 99: {}}}, "ignores the case"),
    ({"allOf": [{"multipleOf": 997}, {"multipleOf": 9.91}]}, "multipleOf"),
]


@pytest.mark.parametrize("schema", ACCEPTED, ids=lambda schema: str(schema)[:40])
def test_within_bounds(schema: object) -> None:
    check_schema(json.dumps(schema))
    check_lark(f"start: %json {json.dumps(schema)}")


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_beyond_a_bound(schema: object, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=f"structured_outputs .*{reason}"):
        check_schema(json.dumps(schema))


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", '{"a": Infinity}', "{} {}", "[" * 100_000, "\ud800"]
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(InvalidParameter, match="structured_outputs"):
        check_schema(text)


@pytest.mark.parametrize(
    "text",
    [
        'start: "&" /~&/ // & in a comment\n# and ~ in another',
        "start: a\n" + "\n".join(f"a{i}: /x/" for i in range(RULES_MAX - 1)),
        'start: %json {"const": "& ~"}',
        r'start: "\"&"',
        'start: A\nA: /a\n~"&/ "b"',
        'start: <&"~>',
        'start: %json{"const": "&"}',
        'start: %regex {"substring_chars": "& ~ %llguidance"}',
        "start: A\nA: /" + "[a-f]" * CASELESS_CLASSES_MAX + "/i",
    ],
    ids=lambda text: text[:30],
)
def test_lark_within_bounds(text: str) -> None:
    check_lark(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("start: A\nA: /a/ & /b/", "operator &"),
        ("start: A\nA: ~/a/", "operator ~"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "options"),
        ("start: a\n" + "\n".join(f"a{i}: /x/" for i in range(RULES_MAX)), "rules"),
        ('start: A\nA: /a\n"/ & /b/ // "', "operator &"),
        ('start: <"> ~ 3 // "', "operator ~"),
        ('start: <"> %json {"multipleOf": 1000003} | <">', "multipleOf"),
        ('start: /a\n"/ %json{"multipleOf": 1000003} // "', "multipleOf"),
        ('start: %json\n"a" & "b"', "operator &"),
        ("start: %llguidance{}", "options"),
        ('start: "a', "cannot be read from"),
        ("start: /a", "cannot be read from"),
        ("start: <a b>", "cannot be read from"),
        ("start: A\nA: /" + "[a-f]" * (CASELESS_CLASSES_MAX + 1) + "/si", "ignores the case"),
        (f"start: %json {json.dumps(caseless(40))} | %json {json.dumps(caseless(25))}", "case"),
        ("start: %json {", "not valid"),
        ('start: %json {"multipleOf": NaN}', "not valid: NaN is no JSON"),
        ('start: %json {"multipleOf": 1000003}', "multipleOf"),
        ("start: %json " + "[" * 100_000, "nested|not valid"),
    ],
    ids=lambda text: text[:30],
)
def test_lark_beyond_a_bound(text: str, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        check_lark(text)


def test_a_pattern_that_ignores_case_is_bounded() -> None:
    check_pattern("(?i)" + "[a-f]" * CASELESS_CLASSES_MAX)
    check_pattern(r"\pL" * 1000)
    with pytest.raises(InvalidParameter, match="ignores the case"):
        check_pattern("a(?i:" + r"\pL" * (CASELESS_CLASSES_MAX + 1) + ")")


numbers = st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=3)


keywords = st.sampled_from(["multipleOf", "$ref", "items", "pattern", "allOf", "patternProperties"])


@given(st.dictionaries(keywords, numbers | st.lists(numbers)))
def test_any_values_are_accepted_or_refused(schema: dict[str, object]) -> None:
    accept_or_refuse(json.dumps(schema))
    accept_or_refuse(f"start: %json {json.dumps(schema)}")


@given(st.text(max_size=200))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    accept_or_refuse(text)


def accept_or_refuse(text: str) -> None:
    for check in (check_schema, check_lark):
        try:
            check(text)
        except InvalidParameter as error:
            assert error.parameter == "structured_outputs"  # noqa: PT017
