"""Forms within bounds become grammars; others are refused with a reason, ours or llguidance's."""

import json
import re
from collections import Counter
from itertools import product
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
    TERMINAL_PARTS_MAX,
    check_lark,
    check_pattern,
    check_schema,
)
from triolet.engine.grammar.schema_patterns import patterns_together, repetitions
from triolet.engine.grammar.text import (
    REASON_CHARACTERS_MAX,
    check_grammar,
    with_ascii_classes,
)
from triolet.engine.structured_outputs import GrammarKind, StructuredOutputs


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


def doubled(levels: int) -> str:
    """Terminals, each twice the next."""
    lines = [f"T{level}: T{level + 1} T{level + 1}" for level in range(levels)]
    return "\n".join(["start: T0", *lines, f'T{levels}: "a"'])


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
        doubled(TERMINAL_PARTS_MAX.bit_length() - 3),
        "start: T0\n" + "\n".join(f'T{i}: "b" | T{i + 1}' for i in range(400)) + '\nT400: "a"',
        "start: A\nA: A",
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
        (doubled(TERMINAL_PARTS_MAX.bit_length()), "terminals made of more than"),
        (doubled(400), "terminals made of more than"),
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


MOST = 3
DISTINCT = [{"pattern": f"a{index}"} for index in range(9)]
NODE = {"properties": {"value": DISTINCT[0], "next": {"$ref": "#/$defs/node"}}}


def wide(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in one that has more than `MOST` patterns, or their number would do."""
    return {"properties": {"rest": {"anyOf": DISTINCT}, "own": schema}}


COUNTED: list[tuple[dict[str, Any], int]] = [
    ({"pattern": "a", "format": "uri", "minLength": 3}, 2),
    ({"allOf": DISTINCT[:3]}, 3),
    ({"anyOf": DISTINCT}, 1),
    ({"properties": {str(index): each for index, each in enumerate(DISTINCT)}}, 1),
    ({"properties": {"a": DISTINCT[0]}, "patternProperties": {"^b": DISTINCT[1]}}, 2),
    ({"allOf": [{"properties": {"a": each}} for each in DISTINCT[:3]]}, 3),
    ({"pattern": "a", "allOf": [{"anyOf": DISTINCT[:2]}, {"items": DISTINCT[3]}]}, 3),
    ({"enum": [{"pattern": "a"}], "default": {"pattern": "b"}, "examples": [DISTINCT[0]]}, 1),
    ({"properties": {"pattern": {"type": "string"}, "allOf": DISTINCT[0]}}, 1),
    ({"allOf": DISTINCT[:4]}, MOST + 1),
    ({"allOf": DISTINCT}, MOST + 1),
]


@pytest.mark.parametrize(("schema", "count"), COUNTED, ids=str)
def test_what_is_joined_is_added_and_of_alternatives_one_counts(
    schema: dict[str, Any], count: int
) -> None:
    assert patterns_together(wide(schema), MOST) == count


def chained(links: int) -> dict[str, Any]:
    """Each says a pattern and refers to the next."""
    definitions = {
        f"a{index}": {**DISTINCT[index % 9], "$ref": f"#/$defs/a{index + 1}"}
        for index in range(links)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{links}": {}}}


@pytest.mark.parametrize("links", [1, 2, MOST])
def test_references_bring_what_they_lead_to(links: int) -> None:
    assert patterns_together({**chained(links), "anyOf": [{"anyOf": DISTINCT}]}, 5) == links + 1
    assert patterns_together(chained(9), MOST) == MOST + 1


def test_recursion_ends_and_what_joins_itself_exceeds_any_bound() -> None:
    tree = {"$defs": {"node": NODE}, "allOf": [{"$ref": "#/$defs/node"}], "anyOf": DISTINCT}
    assert patterns_together(tree, MOST) == 2
    joined = {"allOf": [DISTINCT[0], {"$ref": "#/$defs/a"}]}
    loop = {"$defs": {"a": {"properties": {"b": joined}}}, "$ref": "#/$defs/a", "anyOf": DISTINCT}
    assert patterns_together(loop, MOST) == MOST + 1
    assert patterns_together({"$ref": "#", "anyOf": DISTINCT}, MOST) == MOST + 1


@pytest.mark.parametrize("reference", ["#a", "http://example.com/a", "#/$defs/b", "#/anyOf/9"])
def test_a_reference_that_is_no_place_may_be_anything(reference: str) -> None:
    schema = {"$ref": reference, "anyOf": DISTINCT, "$defs": {"a": {"$anchor": "a"}}}
    assert patterns_together(schema, MOST) == MOST + 1
    assert patterns_together({"$ref": reference, "anyOf": DISTINCT[:2]}, MOST) == 2


@pytest.mark.parametrize("reference", ["#/$defs/a~1%62~0", "#/anyOf/0", "#/anyOf/0/allOf/01"])
def test_places_are_found_as_pointers_say(reference: str) -> None:
    tail = [{"allOf": [{}, DISTINCT[0]]}, *DISTINCT]
    schema = {"$ref": reference, "anyOf": tail, "$defs": {"a/b~": DISTINCT[0]}}
    assert patterns_together(schema, MOST) == 2


def test_references_of_another_root_may_be_anything() -> None:
    part = {"$id": "b", "$defs": {"a": {"allOf": DISTINCT}}, "$ref": "#/$defs/a"}
    schema = {"$defs": {"a": {}}, "properties": {"a": part}}
    assert patterns_together(schema, MOST) == MOST + 1
    assert patterns_together({"$id": "b", **chained(1), "anyOf": DISTINCT}, MOST) == 2


def test_what_takes_too_long_to_tell_is_too_much() -> None:
    links = 200
    definitions = {
        f"a{index}": {"anyOf": [{"$ref": f"#/$defs/a{to}"} for to in range(links)]}
        for index in range(links)
    }
    definitions["a0"] = {"allOf": DISTINCT[:2]}
    schema = {"$defs": definitions, "$ref": "#/$defs/a1", "anyOf": DISTINCT}
    assert patterns_together(schema, 2) == 3


# ---- against what is really joined: the patterns of each place, for each choice of alternatives

Places = Counter[tuple[str, ...]]


def places(schema: dict[str, Any]) -> list[Places]:
    own: Places = Counter({(): 1}) if "pattern" in schema else Counter()
    found = [own]
    if "allOf" in schema:
        found = joined(found, *(places(item) for item in schema["allOf"]))
    if "anyOf" in schema:
        found = joined(found, [one for item in schema["anyOf"] for one in places(item)])
    for name, value in schema.get("properties", {}).items():
        below = [
            Places({(name, *place): count for place, count in one.items()}) for one in places(value)
        ]
        found = joined(found, below)
    return found


def joined(*parts: list[Places]) -> list[Places]:
    return [sum(chosen, Places()) for chosen in product(*parts)]


def schemas(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    own: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"pattern": "a"}])
    if depth == 0:
        return own
    below = schemas(depth - 1)
    several = st.lists(below, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("ab"), below, max_size=2)
    return own | st.fixed_dictionaries(
        {}, optional={"pattern": st.just("a"), "allOf": several, "anyOf": several,
                      "properties": named},
    )  # fmt: skip


@given(schemas(3))
def test_never_fewer_than_are_joined(schema: dict[str, Any]) -> None:
    most = 1000
    real = max((max(one.values(), default=0) for one in places(schema)), default=0)
    many = [{"pattern": str(index)} for index in range(most + 1)]
    assert real <= patterns_together({"properties": {"x": schema, "y": {"anyOf": many}}}, most)


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        (r"\d{3}", "[0-9]{3}"),
        (r"[\d.]+", "[0-9.]+"),
        (r"[^\w]\w", "[^A-Za-z0-9_][A-Za-z0-9_]"),
        (r"\\d\\\d", r"\\d\\[0-9]"),
        (r"[\]\d]\D\W", r"[\]0-9]\D\W"),
        (r"[]\d][^]\w]", "[]0-9][^]A-Za-z0-9_]"),
        ("broken\\", "broken\\"),
    ],
)
def test_classes_are_written_out(pattern: str, meant: str) -> None:
    assert with_ascii_classes(pattern) == meant


PARTS = st.sampled_from([r"\d", r"\w", r"\\", r"\.", "[a\\d]", r"[^\w\]]", "a", "(b|c)", "x*"])


@given(st.lists(PARTS, max_size=6), st.text("ab1_.x\\]", max_size=6))
def test_ascii_text_is_matched_as_before(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    matched = re.fullmatch(pattern, text) is not None
    assert (re.fullmatch(with_ascii_classes(pattern), text) is not None) == matched


SERVED_FORMS = [
    StructuredOutputs.json({"type": "object", "properties": {"a": {"type": "integer"}}}),
    StructuredOutputs.json(True),
    StructuredOutputs.json({"type": "array", "uniqueItems": False}),
    StructuredOutputs.json_object(),
    StructuredOutputs.regex(r"\d{3}-[a-z]+"),
    StructuredOutputs.choice(["a", 'quoted "b"', "\u00e9\U0001f600", "line\nbreak", ""]),
    StructuredOutputs.grammar('start: "a" | B\nB: /[0-9]+/'),
    StructuredOutputs.grammar('root ::= "a" | [0-9]+'),
    StructuredOutputs.grammar('\n\n  start : "a"'),
    # Tokens of a model's own, as forced calls have them.
    StructuredOutputs.grammar('start: <[151657]> %json {"type": "object"} <[151658]>'),
    StructuredOutputs.grammar('start: <|python_tag|> "a"'),
    StructuredOutputs.json({"pattern": "^([a-z]{1,20} ){1,200}$"}),
    StructuredOutputs.json({"properties": {"pattern": {"pattern": "^(a{1,30}){1,30}$"}}}),
]
REFUSED_FORMS = [
    (StructuredOutputs.json({"not": {}}), "served: schemas with `not` are"),
    (StructuredOutputs.json({"items": {}, "uniqueItems": True}), "with `uniqueItems` are not"),
    (StructuredOutputs.json({"type": "strin"}), "Invalid type"),
    (StructuredOutputs.json({"$ref": "#"}), "nothing can match it"),
    (StructuredOutputs.json({"pattern": "^(a{1,1000}){1,1000}$"}), "too many expressions"),
    (StructuredOutputs.json({"pattern": "^(a{1,3}){1,2000}$"}), "too many expressions"),
    (StructuredOutputs.regex("(a{1,100}){1,100}"), "too many expressions"),
    (StructuredOutputs.json({"enum": [], "properties": {"pattern": {}}}), "nsatisfiable|enum"),
    (StructuredOutputs.json({"$ref": "http://example.com/a"}), "not present"),
    (StructuredOutputs.json(False), "nsatisfiable|enum"),
    (StructuredOutputs.json("{"), "not valid JSON"),
    (StructuredOutputs.regex("(?=a)"), "look-around"),
    (StructuredOutputs.regex("(" * 5000 + ")" * 5000), "regex"),
    (StructuredOutputs.regex("["), "regex"),
    (StructuredOutputs.grammar("start: missing"), "missing"),
    (StructuredOutputs.grammar("start: <[151657]> missing"), "missing"),
    (StructuredOutputs.grammar("root ::= " + "(" * 5000), "served"),
    (StructuredOutputs.grammar("nonsense"), "served"),
    (StructuredOutputs.grammar("root ::= a"), "not found"),
    (StructuredOutputs.grammar("\n".join(f"a{i} ::= a{i + 1}" for i in range(600))), "512 rules"),
    (StructuredOutputs.regex("(?i)" + r"\pL" * 100), "ignores the case"),
    (StructuredOutputs(GrammarKind.CHOICE, "{}"), "array of strings"),
    (StructuredOutputs(GrammarKind.CHOICE, "[1]"), "array of strings"),
    (StructuredOutputs(GrammarKind.CHOICE, "["), "choices"),
]


@pytest.mark.parametrize("wanted", SERVED_FORMS, ids=lambda wanted: wanted.kind)
def test_served(wanted: StructuredOutputs) -> None:
    check_grammar(wanted)


@pytest.mark.parametrize(("wanted", "reason"), REFUSED_FORMS, ids=lambda value: str(value)[-40:])
def test_refused_with_the_reason(wanted: StructuredOutputs, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        check_grammar(wanted)
    assert caught.value.parameter == "structured_outputs"
    assert len(caught.value.reason) <= REASON_CHARACTERS_MAX + 30


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("^(a{1,1000}){1,100}$", 100_000),
        ("a{3}b{4}(c{5}|d{6}){2}", 12),
        (r"\({9}[({9}]{2}", 9),
        ("(a{2,}b)*{3}", 3),
        ("a{,3}{x}", 1),
        ("))((", 1),
    ],
)
def test_repetitions_of_repetitions(pattern: str, count: int) -> None:
    assert repetitions(pattern) == count
