"""What embeddings must be: each refusal names the field and the bound."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.embeddings import (
    DTYPES,
    REQUEST_BYTES_MAX,
    STEP_BYTES_MAX,
    EmbeddingLimits,
    check_finite,
    check_form,
    rows_of,
)
from triolet.engine.errors import InvalidParameter
from triolet.engine.step_messages import STEP_LIMITS
from triolet.transports.array import Array
from triolet.transports.codec import CodecLimits
from triolet.transports.rings.shm_ring import OVERSIZE_BYTES_MAX

GOOD = Array("float32", (2, 4), bytes(32))


def refusal(array: Array, tokens: int = 2, hidden_size: int = 4, step_tokens: int = 64) -> str:
    with pytest.raises(InvalidParameter) as caught:
        EmbeddingLimits(hidden_size, step_tokens).check(array, tokens)
    assert caught.value.parameter == "prompt_embeds"
    return caught.value.reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_types_are_taken(dtype: str) -> None:
    size = {"float32": 32, "bfloat16": 16}[dtype]
    EmbeddingLimits(4, 64).check(Array(dtype, (2, 4), bytes(size)), 2)


def test_refusals_name_the_bound() -> None:
    assert refusal(GOOD, tokens=3) == "must have the shape 3 × 4 here, not 2 × 4"
    assert refusal(GOOD, hidden_size=8) == "must have the shape 2 × 8 here, not 2 × 4"
    assert refusal(GOOD, hidden_size=0) == "is not served with this model and executor"
    assert "float32 or bfloat16, not float64" in refusal(Array("float64", (1, 4), bytes(32)))
    assert "two dimensions (tokens, hidden size), not 1" in refusal(
        Array("float32", (8,), bytes(32))
    )
    most = STEP_BYTES_MAX // 16
    EmbeddingLimits(4, most).check(GOOD, 2)
    assert refusal(GOOD, step_tokens=most + 1).endswith(f"max_num_batched_tokens is above {most}")


def test_too_many_bytes() -> None:
    rows = REQUEST_BYTES_MAX // 2**20
    check_form(Array("float32", (rows, 2**18), bytes(REQUEST_BYTES_MAX)))
    with pytest.raises(InvalidParameter, match=f"at most {REQUEST_BYTES_MAX} bytes"):
        check_form(Array("float32", (rows + 1, 2**18), bytes(REQUEST_BYTES_MAX + 2**20)))


def test_bounds_leave_room_for_the_rest_of_a_message() -> None:
    assert CodecLimits().bytes_max * 3 // 4 >= REQUEST_BYTES_MAX
    assert STEP_LIMITS.bytes_max * 3 // 4 >= STEP_BYTES_MAX
    assert STEP_LIMITS.bytes_max <= OVERSIZE_BYTES_MAX


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12), st.sampled_from(DTYPES))
def test_what_is_no_number_is_found(words: list[int], dtype: str) -> None:
    # Often near the exponent that is none.
    words = [word | 0x7F000000 if word % 2 else word for word in words]
    if dtype == "bfloat16":
        words = [word & 0xFFFF0000 for word in words]
    values = struct.unpack(f"<{len(words)}f", struct.pack(f"<{len(words)}I", *words))
    data = b"".join(word.to_bytes(4, "little")[2 if dtype == "bfloat16" else 0 :] for word in words)
    array = Array(dtype, (len(words), 1), data)
    if all(map(math.isfinite, values)):
        check_finite(array)
        return
    row = next(index for index, value in enumerate(values) if not math.isfinite(value))
    with pytest.raises(InvalidParameter, match=f"that of token {row}, column 0, is none"):
        check_finite(array)


def test_rows_are_views() -> None:
    data = bytearray(range(32))
    array = Array("float32", (2, 4), data)
    assert bytes(rows_of(array, 1, 2)) == bytes(range(16, 32))
    data[16] = 99
    assert rows_of(array, 1, 2)[0] == 99
    assert rows_of(array, 1, 1).nbytes == 0
