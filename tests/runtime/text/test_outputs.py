"""Arrays of logprobs: looked at one by one, cut, joined, refused when they make no sense."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.messages import TokenLogprobs
from triolet.runtime.text.outputs import Logprobs, TokenLogprob, join


def told(first: int, count: int, width: int = 3) -> TokenLogprobs:
    """Of tokens 10 × first and so on, each with the ids after it as alternatives."""
    positions = range(first, first + count)
    ids = [10 * place + max(0, column - 1) for place in positions for column in range(width)]
    return TokenLogprobs(
        width,
        struct.pack(f"<{len(ids)}i", *ids),
        struct.pack(f"<{len(ids)}f", *[-token_id / 8 for token_id in ids]),
        struct.pack(f"<{count}i", *positions),
    )


def test_each_token_has_its_own_and_the_most_likely_ones() -> None:
    logprobs = Logprobs.of(told(1, 2))
    assert len(logprobs) == 2
    assert logprobs[1] == TokenLogprob(20, -2.5, 2, ((20, -2.5), (21, -2.625)))
    assert logprobs[-1] == logprobs[1]
    assert list(logprobs) == [logprobs[0], logprobs[1]]
    with pytest.raises(IndexError):
        logprobs[2]


def test_without_alternatives_there_is_only_the_token() -> None:
    assert Logprobs.of(told(3, 1, 1))[0] == TokenLogprob(30, -3.75, 3, ())


@pytest.mark.parametrize(
    "wrong",
    [
        TokenLogprobs(0, b"", b"", b""),
        TokenLogprobs(1, b"1234", b"1234", b"123"),
        TokenLogprobs(2, b"1234", b"1234", b"1234"),
        TokenLogprobs(1, b"1234", b"", b"1234"),
    ],
)
def test_odd_lengths_are_refused(wrong: TokenLogprobs) -> None:
    with pytest.raises(ValueError, match=r"length|bytes"):
        Logprobs.of(wrong)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 4))
def test_parts_joined_say_what_the_whole_says(counts: list[int], width: int) -> None:
    firsts = [1 + sum(counts[:place]) for place in range(len(counts))]
    parts = [
        Logprobs.of(told(first, count, width)) if count else None
        for first, count in zip(firsts, counts, strict=True)
    ]
    whole = Logprobs.of(told(1, sum(counts), width))
    assert join(parts) == (whole if sum(counts) else None)
    assert list(whole.between(0, counts[0])) == list(whole)[: counts[0]]
