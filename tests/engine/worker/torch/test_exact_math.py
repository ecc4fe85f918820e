"""The specified logarithm: near the true one, and the very bits that are written down here."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.worker.torch.exact_math import exact_log


@given(st.floats(1e-300, 1e300) | st.floats(0.5, 2.0))
def test_is_near_the_logarithm(value: float) -> None:
    assert math.isclose(exact_log(value), math.log(value), rel_tol=1e-15)


@given(st.integers(1, 2**33))
def test_is_near_where_draws_are_decided(steps: int) -> None:
    value = 1.0 - steps * 2.0**-34
    assert math.isclose(exact_log(value), math.log(value), rel_tol=1e-15)


# Written down once, by this code: another machine that finds other bits would draw other tokens.
@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, "0x0.0p+0"),
        (2.0, "0x1.62e42fefa39efp-1"),
        (0.1, "0x1.26bb1bbb55515p+1"),
        (1.0 - 2.0**-33, "0x1.0000000040000p-33"),
        (3e-11, "0x1.83ad5ba6e84ccp+4"),
    ],
)
def test_bits(value: float, bits: str) -> None:
    assert abs(exact_log(value)) == float.fromhex(bits)
