"""Typed reading: right values pass, wrong ones name their path, any JSON is decoded or refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.schema.fields import BRACKETS_MAX, Fields, decode_object

FIELDS = Fields(
    {
        "s": "x",
        "b": True,
        "i": 3,
        "f": 2.5,
        "whole": 4.0,
        "o": {"deep": [{"x": 1}, 7]},
        "a": ["p", "q"],
        "n": None,
        "ids": [1, 2],
    }
)


def test_right_types_pass_and_absent_is_none() -> None:
    assert FIELDS.string("s") == "x"
    assert FIELDS.boolean("b") is True
    assert FIELDS.integer("i") == 3
    assert FIELDS.integer("whole") == 4
    assert FIELDS.number("f") == 2.5
    assert FIELDS.number("i") == 3.0
    assert FIELDS.strings("a") == ["p", "q"]
    assert FIELDS.strings("s") == ["x"]
    for read in (FIELDS.string, FIELDS.boolean, FIELDS.integer, FIELDS.number, FIELDS.nested):
        assert read("n") is None
        assert read("absent") is None
    for read_array in (FIELDS.array, FIELDS.objects, FIELDS.strings):
        assert read_array("absent") is None


@pytest.mark.parametrize(
    ("reader", "name", "path"),
    [
        ("string", "i", "i"),
        ("boolean", "i", "i"),
        ("integer", "b", "b"),
        ("integer", "f", "f"),
        ("number", "b", "b"),
        ("number", "s", "s"),
        ("nested", "a", "a"),
        ("array", "o", "o"),
        ("objects", "a", "a[0]"),
        ("strings", "ids", "ids[0]"),
    ],
)
def test_wrong_types_name_the_path(reader: str, name: str, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        {r.__name__: r for r in _readers()}[reader](name)
    assert (caught.value.status, caught.value.code) == (400, "invalid_type")
    assert caught.value.param == path


def _readers() -> tuple:  # type: ignore[type-arg]
    return (
        FIELDS.string,
        FIELDS.boolean,
        FIELDS.integer,
        FIELDS.number,
        FIELDS.nested,
        FIELDS.array,
        FIELDS.objects,
        FIELDS.strings,
    )


def test_paths_grow_downwards() -> None:
    nested = FIELDS.nested("o")
    assert nested is not None
    with pytest.raises(ApiError) as caught:
        nested.objects("deep")
    assert caught.value.param == "o.deep[1]"


def test_an_integer_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ApiError, match="too large"):
        Fields({"t": 10**400}).number("t")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.floats(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


codes: set[str] = set()


@given(st.binary(max_size=50) | json_values.map(lambda value: msgspec.json.encode(value)))
def test_bytes_are_an_object_or_a_400(data: bytes) -> None:
    try:
        found: object = decode_object(data)
    except ApiError as error:
        found = {"code": error.code}
        codes.add(error.code)
    assert isinstance(found, dict)
    assert codes <= {"invalid_json"}


@pytest.mark.parametrize("data", [b'{"a":"\xff"}', b"[" * 100_000, b'{"a":1e999}', b"", "1"])
def test_hostile_json_is_refused(data: bytes | str) -> None:
    with pytest.raises(ApiError, match="JSON"):
        decode_object(data)


@pytest.mark.parametrize("opening", ["{", "["])
def test_a_body_that_would_hold_the_loop_is_refused(opening: str) -> None:
    """Not by its bytes: a long text is no burden."""
    for text in ("x" * 2**20, opening * 1000):
        assert decode_object(msgspec.json.encode({"a": text})) == {"a": text}
    most = '{"a":[' + "[]," * (BRACKETS_MAX - 2)
    assert len(decode_object(most[:-1] + "]}")) == 1
    for data in (most + "[]]}", (most + "[]]}").encode()):
        with pytest.raises(ApiError) as caught:
            decode_object(data)
        assert (caught.value.status, caught.value.code) == (400, "invalid_json")
