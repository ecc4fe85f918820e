"""The count is never below what schemas really join, and near it where they are as usual."""

from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.grammar.schema_patterns import patterns_together

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
    links = 400
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
