"""Arrays: what they accept, and that nothing is copied."""

import array

import pytest

from triolet.transports.array import DIMENSIONS_MAX, ITEM_BYTES, Array


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_sizes_follow_from_dtype_and_shape(dtype: str) -> None:
    size = 6 * ITEM_BYTES[dtype]
    assert Array(dtype, (2, 3), bytes(size)).data.nbytes == size
    with pytest.raises(ValueError, match="has"):
        Array(dtype, (2, 3), bytes(size + 1))


def test_scalars_and_empty_arrays() -> None:
    assert Array("int64", (), bytes(8)).shape == ()
    assert Array("float32", (3, 0), b"").data.nbytes == 0


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("complex64", (1,)), ("int8", (-1, -1)), ("__class__", ()), ("int8", (1,) * 9)],
)
def test_refuses(dtype: str, shape: tuple[int, ...]) -> None:
    assert len(shape) != 9 or DIMENSIONS_MAX < 9
    with pytest.raises(ValueError):
        Array(dtype, shape, b"\0")


def test_views_the_buffer_instead_of_copying_it() -> None:
    numbers = array.array("f", [1.0, 2.0])
    seen = Array("float32", (2,), memoryview(numbers))
    numbers[0] = 3.0
    assert seen.data.cast("f").tolist() == [3.0, 2.0]


def test_refuses_a_buffer_with_gaps() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        Array("int8", (2,), memoryview(b"abcd")[::2])


def test_compares_by_value() -> None:
    assert Array("int8", (2,), b"ab") == Array("int8", (2,), bytearray(b"ab"))
    assert Array("int8", (2,), b"ab") != Array("int8", (1, 2), b"ab")
    assert Array("int8", (2,), b"ab") != b"ab"
    assert repr(Array("int8", (2,), b"ab")) == "Array('int8', (2,), 2 bytes)"
