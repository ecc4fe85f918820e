"""JSON is decoded or refused, and paths grow downwards; wrong values are in test_bad_bodies."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.schema.fields import (
    BRACKETS_MAX,
    COMMAS_MAX,
    QUOTES_MAX,
    ObjectFields,
    decode_object,
)

FIELDS = ObjectFields({"s": "x", "i": 3, "o": {"deep": [{"x": 1}, 7]}, "a": ["p"], "n": None})


def test_right_types_pass_and_absent_is_none() -> None:
    assert FIELDS.required("s") == "x"
    for read in (FIELDS.string, FIELDS.boolean, FIELDS.nested):
        assert read("n") is None
        assert read("absent") is None
    assert not [*FIELDS.objects("absent")]


@pytest.mark.parametrize(
    ("reader", "name", "path"),
    [
        (FIELDS.string, "i", "i"),
        (FIELDS.required, "n", "n"),
        (FIELDS.boolean, "i", "i"),
        (FIELDS.nested, "a", "a"),
        (lambda name: [*FIELDS.objects(name)], "o", "o"),
        (lambda name: [*FIELDS.objects(name)], "a", "a[0]"),
        (lambda name: [*ObjectFields({"deep": [{}, 7]}, name).objects("deep")], "o", "o.deep[1]"),
    ],
)
def test_wrong_types_name_the_path(reader: Callable[[str], object], name: str, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        reader(name)
    assert (caught.value.status, caught.value.param) == (400, path)


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


@pytest.mark.parametrize("data", [b'{"a":"\xff"}', b"[" * 100_000, b'{"a":1e999}', b"", b"1"])
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError, match="JSON"):
        decode_object(data)


def test_a_byte_order_mark_is_ignored() -> None:
    assert decode_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("body", [r'{"\ud800": 1}', r'{"a": "\uD83d"}', r'{"a": "\udc00"}'])
def test_half_a_pair_is_named(body: str) -> None:
    with pytest.raises(ApiError, match="utf-16 surrogate pair"):
        decode_object(body.encode())
    with pytest.raises(ApiError, match="truncated"):
        decode_object(b'{"a": "b')


def test_a_body_of_too_many_strings_or_numbers_is_refused() -> None:
    quoted = '"' * QUOTES_MAX
    assert decode_object(msgspec.json.encode({"a": quoted})) == {"a": quoted}
    strings = b'{"a":[' + b'"",' * (QUOTES_MAX // 2 - 1)
    assert len(decode_object(strings[:-1] + b"]}")) == 1
    token_ids = [12345] * 2**20  # of the longest models' contexts
    assert decode_object(msgspec.json.encode({"prompt": token_ids})) == {"prompt": token_ids}
    for data in (strings + b'""]}', b'{"a":[' + b"1," * (COMMAS_MAX + 1) + b"1]}"):
        with pytest.raises(ApiError, match="The body has over") as caught:
            decode_object(data)
        assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("opening", ["{", "["])
def test_a_body_that_would_hold_the_loop_is_refused(opening: str) -> None:
    """Not by its bytes: a long text is no burden."""
    for text in ("x" * 2**20, opening * 1000):
        assert decode_object(msgspec.json.encode({"a": text})) == {"a": text}
    most = b'{"a":[' + b"[]," * (BRACKETS_MAX - 2)
    assert len(decode_object(most[:-1] + b"]}")) == 1
    with pytest.raises(ApiError) as caught:
        decode_object(most + b"[]]}")
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
