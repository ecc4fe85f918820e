"""Which whole answers are written down for a successor."""

import pytest

from triolet.api.streams.adoption import LONG_TOKENS, is_long
from triolet.engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("max_tokens", "choices", "expected"),
    [(LONG_TOKENS - 1, 1, False), (LONG_TOKENS, 1, True), (1, LONG_TOKENS, True), (None, 1, True)],
)
def test_one_that_may_be_long_is(max_tokens: int | None, choices: int, expected: bool) -> None:
    assert is_long(SamplingParams(max_tokens=max_tokens), choices) is expected
