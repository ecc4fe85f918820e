"""Logprobs of one request's tokens: kept in order, told again from any index, once each."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.core.logprob_log import LogprobLog
from triolet.engine.messages import TokenLogprobs
from triolet.engine.step_messages import RowLogprobs


def integers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def rows(first: int, count: int, width: int) -> RowLogprobs:
    """Positions from `first` on, whose items can be told apart."""
    positions = range(first, first + count)
    items = [100 * position + column for position in positions for column in range(width)]
    data = integers(*items)
    return RowLogprobs(
        row=0, first=first, width=width, token_ids=data, logprobs=data, ranks=integers(*positions)
    )


def told(first: int, count: int, width: int) -> TokenLogprobs:
    arrays = rows(first, count, width)
    return TokenLogprobs(width, arrays.token_ids, arrays.logprobs, arrays.ranks)


def test_nothing_is_told_before_there_is_anything() -> None:
    log = LogprobLog(3)
    assert (len(log), log.size, log.since(3)) == (0, 0, None)


def test_from_any_index_to_the_end() -> None:
    log = LogprobLog(3)
    log.append(rows(3, 1, 2), 3)
    log.append(rows(4, 2, 2), 4)
    assert log.since(3) == told(3, 3, 2)
    assert log.since(0) == told(3, 3, 2), "what a replay brought is not ours to tell"
    assert log.since(5) == told(5, 1, 2)
    assert log.since(6) is None
    assert log.size == 3 * (2 * 2 + 1) * 4


def test_a_gap_is_a_bug() -> None:
    log = LogprobLog(1)
    with pytest.raises(AssertionError, match="1 to 2"):
        log.append(rows(2, 1, 1), 2)


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_what_comes_again_is_kept_once(width: int, chunks: list[tuple[int, int]]) -> None:
    log = LogprobLog(1)
    for back, count in chunks:
        first = max(1, 1 + len(log) - back)
        log.append(rows(first, count, width), first)
        log.check_invariants()
    assert log.since(1) == (told(1, len(log), width) if len(log) else None)
