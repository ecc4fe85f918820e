"""Tables of fields: what each kind reads, refuses and says of itself."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.schema.reader import (
    Body,
    Field,
    Flag,
    Integer,
    Kind,
    Nested,
    Number,
    Text,
    Texts,
    TokenIds,
    Unserved,
    is_empty,
    never,
    one_of,
)


def test_harmless_values_compare_with_their_types() -> None:
    assert one_of(1, "none")(1)
    assert not one_of(1)(True)
    assert one_of(["text"])(["text"])
    assert is_empty([])
    assert not is_empty([0])
    assert not never(None)


INNER = Body({"flag": Field(Flag())}, strict=True)
KINDS: dict[str, Kind] = {
    "text": Text(characters_max=3, choices=("a", "bb")),
    "flag": Flag(),
    "integer": Integer(minimum=-2, maximum=9),
    "number": Number(minimum=0, maximum=1, is_above=True),
    "texts": Texts(items_max=2, characters_max=3),
    "ids": TokenIds(items_min=1, items_max=3, maximum=9),
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
        ("number", 0.25, 0.25),
        ("texts", "abc", ["abc"]),
        ("texts", ["a", "b"], ["a", "b"]),
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
        ("text", 1, "text"),
        ("text", "c", "text"),
        ("flag", 1, "flag"),
        ("flag", "true", "flag"),
        ("integer", True, "integer"),
        ("integer", 1.5, "integer"),
        ("integer", "1", "integer"),
        ("integer", -3, "integer"),
        ("integer", 10**400, "integer"),
        ("integer", 1e300, "integer"),
        ("number", False, "number"),
        ("number", 0, "number"),
        ("number", 1.5, "number"),
        ("number", math.nan, "number"),
        ("number", math.inf, "number"),
        ("number", 10**400, "number"),
        ("texts", 1, "texts"),
        ("texts", ["a", "b", "c"], "texts"),
        ("texts", ["a", 1], "texts[1]"),
        ("texts", ["a", ""], "texts[1]"),
        ("texts", "abcd", "texts[0]"),
        ("ids", [], "ids"),
        ("ids", [1, 2, 3, 4], "ids"),
        ("ids", [1, True], "ids[1]"),
        ("ids", [1, 2.0], "ids[1]"),
        ("ids", [-1], "ids"),
        ("ids", [10], "ids"),
        ("ids", {"a": 1}, "ids"),
        ("inner", [], "inner"),
        ("inner", {"flag": 1}, "inner.flag"),
        ("inner", {"flag": None, "other": None}, "inner.other"),
        ("unserved", 2, "unserved"),
    ],
)
def test_wrong_values_name_their_path(name: str, value: object, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        TABLE.read({name: value})
    assert (caught.value.status, caught.value.param) == (400, path)
    assert caught.value.message.startswith(f"{path}: ")


def test_null_is_absent_and_what_is_harmless_is_not_read() -> None:
    assert TABLE.read(dict.fromkeys(KINDS)) == {}
    assert TABLE.read({"unserved": 1, "unheard of": object()}) == {}


def test_what_is_required_must_be_there() -> None:
    body = Body({"a": Field(Flag(), required=True), "b": Field(Flag())})
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


def test_the_schema_names_every_field() -> None:
    schema = TABLE.schema()
    assert schema["type"] == "object"
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert set(properties) == set(KINDS)
    assert properties["inner"]["additionalProperties"] is False
    assert properties["number"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
