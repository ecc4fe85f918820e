"""What is read out of a text can be written again, wherever in the stack."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.text.json_text import NESTING_MAX, check_nesting, read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(VALUES, st.booleans())
def test_json_is_read_and_can_be_written(value: object, ascii_only: bool) -> None:
    read = read_json(json.dumps(value, ensure_ascii=ascii_only))
    assert read == value
    msgspec.json.encode(read)


@pytest.mark.parametrize("text", ["", "{", "[1,]", "NaN", "1e999", r'"\ud800"', '"a" "b"', "\n"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_has_a_bound_far_from_the_end_of_the_stack(opening: str) -> None:
    closing = "]" if opening == "[" else "}"

    def nested(depth: int) -> str:
        return opening * depth + "1" + closing * depth

    check_nesting(read_json(nested(NESTING_MAX + 1)))
    for depth in (NESTING_MAX + 2, 900, 100_000):
        with pytest.raises(ValueError, match=f"more than {NESTING_MAX} deep"):
            read_json(nested(depth))
