"""Every transition that is allowed works; every other one is asserted; ends are final."""

import math

import pytest

from triolet.runtime.frontend.ledger_entry import (
    TRANSITIONS,
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
