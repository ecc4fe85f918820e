"""Tables of fields: what they read, refuse and document, of bodies and of queries."""

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.openai.fields.sampling_fields import TokenIdsKind
from triolet.api.schema.fields import FlagKind, IntegerKind, Kind, NumberKind, TextKind, TextsKind
from triolet.api.schema.tables import IS_EMPTY, NEVER, Body, Field, Nested, Query, Unserved, one_of


def test_harmless_values_compare_with_their_types() -> None:
    assert 1 in one_of(1, "none")
    assert True not in one_of(1)
    assert ["text"] in one_of(["text"])
    assert [] in IS_EMPTY
    assert [0] not in IS_EMPTY
    assert None not in NEVER


INNER = Body({"flag": Field(FlagKind())}, strict=True)
KINDS: dict[str, Kind[Any]] = {
    "text": TextKind(characters_max=3, choices=("a", "bb")),
    "flag": FlagKind(),
    "integer": IntegerKind(minimum=-2, maximum=9),
    "number": NumberKind(minimum=0, maximum=1),
    "texts": TextsKind(items_max=2, characters_max=3),
    "ids": TokenIdsKind(items_min=1, items_max=3, maximum=9),
    "inner": Nested(INNER),
    "unserved": Unserved(one_of(1), "not served"),
}
TABLE = Body({name: Field(kind) for name, kind in KINDS.items()})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("text", "bb", "bb"),
        ("flag", False, False),
        ("integer", 9, 9),
        ("integer", -2.0, -2),
        ("number", 1, 1.0),
        ("texts", "abc", ["abc"]),
        ("texts", [], []),
        ("ids", [0, 9], [0, 9]),
        ("inner", {"flag": True}, {"flag": True}),
        ("inner", {}, {}),
    ],
)
def test_right_values(name: str, value: object, expected: object) -> None:
    read = TABLE.read({name: value})
    assert read == {name: expected}
    assert type(read[name]) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("number", math.nan, "number"),
        ("number", 10**400, "number"),
        ("integer", 1e300, "integer"),
        ("texts", ["a", ""], "texts[1]"),
        ("ids", [1, True], "ids[1]"),
        ("inner", {"flag": 1}, "inner.flag"),
        ("inner", {"flag": None, "other": None}, "inner.other"),
        ("unserved", 2, "unserved"),
    ],
)
def test_wrong_values_name_their_path(name: str, value: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        TABLE.read({name: value})
    assert (caught.value.status, caught.value.param) == (400, path)


def test_null_is_absent_and_what_is_harmless_is_not_read() -> None:
    assert TABLE.read(dict.fromkeys(KINDS)) == {}
    assert TABLE.read({"unserved": 1, "unheard of": object()}) == {}


def test_what_is_required_must_be_there() -> None:
    body = Body({"a": Field(FlagKind(), required=True), "b": Field(FlagKind())})
    with pytest.raises(ApiError, match="a: is missing") as caught:
        body.read({"a": None, "b": True})
    assert caught.value.code == "missing_required_parameter"
    assert body.schema()["required"] == ["a"]


def test_a_long_name_of_an_unknown_field_is_cut() -> None:
    with pytest.raises(ApiError) as caught:
        INNER.read({"x" * 10_000: 1})
    assert len(caught.value.message) < 300


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(),
    lambda children: st.lists(children) | st.dictionaries(st.text(max_size=4), children),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*KINDS, "other"]), json_values))
def test_anything_is_read_or_refused_by_name(values: dict[str, object]) -> None:
    refused: set[str] = set()
    read: dict[str, object] = {}
    try:
        read = TABLE.read(values)
    except ApiError as error:
        refused = {re.split(r"[.\[]", error.param or "")[0]}
    assert set(read) | refused <= set(values)


# ---- queries

RESUMED = Query(
    {"after": Field(IntegerKind(minimum=0), "Behind this.")}, headers={"last-event-id": "after"}
)


@pytest.mark.parametrize(
    ("query", "header", "value"),
    [
        ("", None, None),
        ("", "", None),
        ("", "7", 7),
        ("after=7", "7", 7),
        ("after=07", "7", 7),
        ("after=7", "", 7),
        ("after=0", "0", 0),
        ("after=7", "8", 8),
    ],
)
def test_a_header_stands_for_a_parameter(query: str, header: str, value: int | None) -> None:
    assert RESUMED.read(query, {"last-event-id": header}.get) == {"after": value}


@pytest.mark.parametrize(("query", "header"), [("after=7", "x"), ("", "x")])
def test_a_header_is_checked_as_the_parameter(query: str, header: str) -> None:
    with pytest.raises(ApiError) as caught:
        RESUMED.read(query, {"last-event-id": header}.get)
    assert (caught.value.status, caught.value.param) == (400, "after")


QUERY = Query(
    {
        "flag": Field(FlagKind(), "Yes or no."),
        "count": Field(IntegerKind(minimum=-5, maximum=9)),
        "order": Field(TextKind(choices=("asc", "desc"))),
        "any": Field(IntegerKind()),
    }
)
ABSENT = {"flag": None, "count": None, "order": None, "any": None}


def read(query: str) -> dict[str, object]:
    return QUERY.read(query)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("", {}),
        ("other=1", {}),
        ("flag=true", {"flag": True}),
        ("flag=false&count=-5&order=asc", {"flag": False, "count": -5, "order": "asc"}),
        ("count=1&count=2", {"count": 2}),
        ("count=%32", {"count": 2}),
        (f"any={2**63 - 1}", {"any": 2**63 - 1}),
    ],
)
def test_values_have_their_types(query: str, values: dict[str, object]) -> None:
    assert read(query) == ABSENT | values


@pytest.mark.parametrize(
    "query",
    ["flag=yes", "count=x", "count=1.0", "count=--1", "count=%D9%A1", "count=10", "order=up",
     f"any={2**63}", "any=" + "9" * 5000],
)  # fmt: skip
def test_a_wrong_value_is_a_400_that_names_it(query: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(query)
    assert (caught.value.status, caught.value.param) == (400, query.partition("=")[0])


def test_too_many_parameters_are_a_400() -> None:
    with pytest.raises(ApiError, match="cannot be read") as caught:
        read("&".join(["flag=true"] * 65))
    assert (caught.value.status, caught.value.param) == (400, "query")


def test_the_document_has_the_bounds_that_are_read() -> None:
    flag, count, order, _ = QUERY.parameters()
    assert (flag["in"], flag["required"], flag["description"]) == ("query", False, "Yes or no.")
    assert flag["schema"] == {"type": "boolean"}
    assert count["schema"] == {"type": "integer", "minimum": -5, "maximum": 9}
    assert order["schema"] == {"type": "string", "enum": ["asc", "desc"]}
