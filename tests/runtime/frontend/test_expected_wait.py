"""The expected wait is known from first tokens alone, and counts what is ahead in fair turns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.frontend.admission import (
    AHEAD_MIN,
    FREE_ROWS_S,
    STARTS_MAX,
    STARTS_MIN,
    ExpectedWait,
)


def busy(rate: float = 8.0, seconds: float = 100.0, waiting: int = 40) -> ExpectedWait:
    """One for which so many have begun in a second for long, with others waiting."""
    wait = ExpectedWait()
    starts = int(rate * seconds)
    for _ in range(starts + waiting):
        wait.handle_admitted("flood", 0.0)
    for number in range(starts):
        wait.handle_begun("flood", FREE_ROWS_S + number / rate)
    return wait


def test_it_is_the_queue_by_the_rate() -> None:
    wait = busy()
    assert wait.rate() == pytest.approx(8.0)
    assert wait.seconds("flood") == pytest.approx(40 / 8)


def test_another_principal_waits_for_its_own_and_as_many() -> None:
    wait = busy()
    for _ in range(10):
        wait.handle_admitted("other", 100.0)
    assert wait.seconds("other") == pytest.approx((10 + 11) / 8)
    assert wait.seconds("flood") == pytest.approx((40 + 10) / 8)
    wait.handle_left("other")
    assert wait.seconds("other") == pytest.approx((9 + 10) / 8)
    assert wait.seconds("third") == 0.0


def test_a_few_ahead_are_no_queue_however_slow() -> None:
    wait = busy(rate=0.1, waiting=AHEAD_MIN)
    assert wait.seconds("flood") > 9 * AHEAD_MIN
    wait.handle_left("flood")
    assert wait.seconds("flood") == 0.0


def test_nothing_is_known_of_idle_engines() -> None:
    wait = ExpectedWait()
    for number in range(100):
        wait.handle_admitted("", float(number))
        wait.handle_begun("", number + 0.1)
    for _ in range(200):
        wait.handle_admitted("", 100.0)
    assert wait.rate() is None
    assert wait.seconds("") == 0.0
    for number in range(STARTS_MIN):
        wait.handle_begun("", 100.0 + 0.01 * number)
    assert wait.rate() is None, "they found free rows"
    for _ in range(STARTS_MIN):
        wait.handle_begun("", 102.0)
    assert wait.rate() == pytest.approx(STARTS_MIN / 2)


def test_a_pause_is_no_slow_rate_until_it_ends() -> None:
    """Nothing begins while an engine is replaced: what was measured before stands."""
    wait = busy()
    before = wait.seconds("flood")
    wait.handle_left("flood")
    assert wait.seconds("flood") < before


def test_the_rate_is_of_the_latest() -> None:
    wait = busy(rate=1.0, seconds=100.0, waiting=2 * STARTS_MAX)
    for number in range(STARTS_MAX + 1):
        wait.handle_begun("flood", 100.0 + (number + 1) / 10)
    assert wait.rate() == pytest.approx(10.0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), max_size=80))
def test_it_counts(steps: list[tuple[str, int]]) -> None:
    wait, inside, now = ExpectedWait(), {"a": 0, "b": 0}, 0.0
    for principal, what in steps:
        now += 0.3
        if what == 0:
            wait.handle_admitted(principal, now)
            inside[principal] += 1
        elif inside[principal]:
            inside[principal] -= 1
            wait.handle_begun(principal, now) if what == 1 else wait.handle_left(principal)
        wait.check_invariants()
        assert wait.seconds("a") >= 0
