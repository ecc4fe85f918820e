"""The lower limit counts, credit only grows, and nobody with room in both is ever stuck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.sampling_params import TOKENS_MAX
from triolet.runtime.frontend.request_flow import StreamCredit
from triolet.transports.credits import CreditWindow


@pytest.mark.parametrize(
    ("window", "granted", "credit"), [(None, None, None), (8, None, 8), (None, 3, 3), (8, 3, 3)]
)
def test_the_first_credit_is_the_lower_limit(
    window: int | None, granted: int | None, credit: int | None
) -> None:
    machine = StreamCredit(None if window is None else CreditWindow(window), granted)
    assert machine.credit == credit
    machine.check_invariants()


def test_a_client_without_a_limit_has_nothing_to_grant() -> None:
    machine = StreamCredit(CreditWindow(8))
    assert machine.handle_granted(100) is None
    assert machine.credit == 8


def test_what_is_granted_counts_up_to_the_window() -> None:
    machine = StreamCredit(CreditWindow(8), 0)
    assert machine.handle_granted(3) == 3
    assert machine.handle_granted(10) == 8
    assert machine.handle_granted(1) is None
    assert machine.handle_consumed(8) == 14
    assert machine.handle_consumed(14) is None


def test_grants_stay_within_the_integers_of_the_wire() -> None:
    machine = StreamCredit(None, 1)
    assert machine.handle_granted(2**70) == TOKENS_MAX


@given(st.integers(1, 20), st.integers(0, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_a_reader_gets_all_that_was_granted(
    window: int, first: int, moves: list[tuple[bool, int]]
) -> None:
    machine, granted, consumed = StreamCredit(CreditWindow(window), first), first, 0
    credit = machine.credit
    for is_grant, amount in moves:
        if is_grant:
            granted += amount
            news = machine.handle_granted(amount)
        else:
            assert credit is not None
            consumed = min(consumed + amount, credit)
            news = machine.handle_consumed(consumed)
        machine.check_invariants()
        assert news is None or credit is None or news > credit
        credit = credit if news is None else news
        assert credit is not None
        assert consumed <= credit <= granted
        # Stuck only for want of a grant, or while there is something to take.
        assert credit > consumed or credit == granted
