"""Credit windows: a table, and the two promises under any order of reports."""

import hypothesis
import hypothesis.strategies as st
import pytest

from triolet.runtime.frontend.request_flow import CreditWindow


@pytest.mark.parametrize(
    ("window", "start", "reports", "grants"),
    [
        (8, 0, [1, 2, 3, 4, 5, 8], [None, None, None, 12, None, 16]),
        (1, 0, [1, 1, 2], [2, None, 3]),
        (8, 100, [100, 104], [None, 112]),
        (8, 0, [8, 4, 8], [16, None, None]),
    ],
)
def test_grants(window: int, start: int, reports: list[int], grants: list[int | None]) -> None:
    credit = CreditWindow(window, start)
    assert credit.credit == start + window
    for index, grant in zip(reports, grants, strict=True):
        assert (index >= credit.grants_at) == (grant is not None), "a report below it is not needed"
        assert credit.handle_consumed(index) == grant


@hypothesis.settings(deadline=None)
@hypothesis.given(st.integers(1, 50), st.lists(st.integers(0, 9)))
def test_a_producer_that_uses_its_credit_is_never_stuck(window: int, takes: list[int]) -> None:
    credit = CreditWindow(window)
    granted = credit.credit
    consumed = 0
    for take in takes:
        consumed = min(consumed + take, granted)
        grant = credit.handle_consumed(consumed)
        if grant is not None:
            assert granted < grant <= consumed + window
            granted = grant
        credit.check_invariants()
        assert granted > consumed


@pytest.mark.parametrize(("window", "start"), [(0, 0), (-1, 0), (1, -1)])
def test_refuses_windows_that_cannot_work(window: int, start: int) -> None:
    with pytest.raises(ValueError):
        CreditWindow(window, start)
