"""Every transition that is allowed works; every other one is asserted; ends are final."""

import math

import pytest

from triolet.runtime.frontend.ledger_entry import (
    TRANSITIONS,
    Histogram,
    Latencies,
    LedgerStatus,
    RequestState,
)

ENDS = [status for status, after in TRANSITIONS.items() if not after]


def make(status: LedgerStatus) -> RequestState:
    state = RequestState(created_at=1.0)
    if status is LedgerStatus.STREAMING:
        state.handle_tokens(2.0)
    elif status is LedgerStatus.UNPLACED:
        state.handle_lost(2.0)
    elif status is not LedgerStatus.PLACED:
        state.handle_end(status, 2.0)
    assert state.status is status
    return state


def go(state: RequestState, status: LedgerStatus, now: float) -> None:
    if status is LedgerStatus.STREAMING:
        state.handle_tokens(now)
    elif status is LedgerStatus.UNPLACED:
        state.handle_lost(now)
    elif status is LedgerStatus.PLACED:
        state.handle_placed(now)
    else:
        state.handle_end(status, now)


@pytest.mark.parametrize("before", LedgerStatus)
@pytest.mark.parametrize("after", LedgerStatus)
def test_the_table_is_the_behaviour(before: LedgerStatus, after: LedgerStatus) -> None:
    state = make(before)
    if after in TRANSITIONS[before]:
        go(state, after, 3.0)
        assert state.status is after
        state.check_invariants()
    else:
        with pytest.raises(AssertionError):
            go(state, after, 3.0)
        assert state.status is before


def test_ends() -> None:
    assert set(ENDS) == {LedgerStatus.FINISHED, LedgerStatus.FAILED, LedgerStatus.ABORTED}
    assert [make(status).ended for status in ENDS] == [True] * 3
    with pytest.raises(AssertionError):
        RequestState(1.0).handle_end(LedgerStatus.STREAMING, 2.0)


def test_times_are_of_the_whole_request() -> None:
    state = RequestState(created_at=1.0)
    assert state.first_token_at == math.inf
    state.handle_tokens(2.0)
    state.handle_tokens(3.0)
    assert (state.first_token_at, state.entered_at) == (2.0, 2.0)
    state.handle_lost(4.0)
    state.handle_placed(5.0)
    state.handle_tokens(6.0)
    assert (state.first_token_at, state.entered_at) == (2.0, 6.0)


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds)
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert histogram.sum_s == 7.65


def test_a_request_counts_once_at_its_end() -> None:
    latencies, state = Latencies(), RequestState(10.0)
    state.handle_tokens(10.5)
    latencies.handle_end(state, 5, 12.0)
    assert latencies.first_token.sum_s == 0.5
    assert latencies.per_token.sum_s == 0.375
    assert latencies.whole.sum_s == 2.0


def test_without_a_token_nothing_is_counted() -> None:
    latencies = Latencies()
    latencies.handle_end(RequestState(10.0), 0, 12.0)
    one = RequestState(10.0)
    one.handle_tokens(11.0)
    latencies.handle_end(one, 1, 11.0)
    assert sum(latencies.first_token.counts) == 1
    assert sum(latencies.per_token.counts) == 0
