"""Turns are shared by cost between principals; nobody is passed over, and each is bounded."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.errors import Overloaded
from triolet.runtime.text.fair_turns import FairTurn, TurnQueue


def serve(queue: TurnQueue, turn: FairTurn, count: int) -> list[str]:
    """End the turn that is served, and so on: the principals of the next `count` ones."""
    order = []
    for _ in range(count):
        (turn,) = queue.leave(turn)
        order.append(turn.principal)
        queue.check_invariants()
    return order


def test_one_that_comes_late_is_next() -> None:
    queue = TurnQueue(1, 100)
    first = queue.ask("flood", 10)
    for _ in range(20):
        queue.ask("flood", 10)
    for _ in range(3):
        queue.ask("other", 10)
    order = serve(queue, first, 8)
    assert order.index("other") <= 1
    assert order[:6].count("other") == 3


def test_shares_are_of_cost_not_of_turns() -> None:
    queue = TurnQueue(1, 100)
    first = queue.ask("large", 30)
    for _ in range(20):
        queue.ask("large", 30)
        queue.ask("small", 10)
    counted = Counter(serve(queue, first, 20))
    assert counted["small"] in (14, 15, 16)


def test_nobody_gathers_credit() -> None:
    queue = TurnQueue(1, 100)
    turn = queue.ask("busy", 10)
    for _ in range(50):
        assert queue.leave(turn) == []
        turn = queue.ask("busy", 10)
    for _ in range(5):
        queue.ask("late", 10)
        queue.ask("busy", 10)
    order = serve(queue, turn, 8)
    assert order[:4].count("late") <= 3
    assert order.count("busy") >= 3


def test_one_principal_is_bounded_and_another_is_not_refused() -> None:
    queue = TurnQueue(1, 2)
    queue.ask("a", 1)
    queue.ask("a", 1)
    waiting = queue.ask("a", 1)
    with pytest.raises(Overloaded, match=r"input\.waiting_max"):
        queue.ask("a", 1)
    queue.ask("b", 1)
    assert queue.leave(waiting) == []
    queue.ask("a", 1)
    queue.check_invariants()


@given(
    st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=60)
)
def test_each_turn_begins_once(capacity: int, steps: list[tuple[str, int]]) -> None:
    queue, turns = TurnQueue(capacity, 4), list[FairTurn]()
    for principal, what in steps:
        if what < 4:
            try:
                turns.append(queue.ask(principal, what))
            except Overloaded:
                assert sum(not t.begun and t.principal == principal for t in turns) == 4
        elif turns:
            for begun in queue.leave(turns.pop(what % len(turns))):
                assert begun in turns
        queue.check_invariants()
    while turns:
        turn = next(each for each in turns if each.begun)
        turns.remove(turn)
        queue.leave(turn)
    queue.check_invariants()
