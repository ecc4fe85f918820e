"""Choice of the number of threads: which is taken, and what tries of the other cost."""

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.worker.native.thread_choice import (
    FIRST_WAIT,
    LOSS_SHARE,
    TRY_STEPS,
    WARM_UP_STEPS,
    ThreadChoice,
)

# Before the first try all cores are taken.
FIRST_STEPS = WARM_UP_STEPS + FIRST_WAIT
Cost = Callable[[int], float]


def run(choice: ThreadChoice, steps: int, cost: Cost, tokens: int = 8) -> list[int]:
    """The numbers that were chosen; `cost` is a step's milliseconds by its threads."""
    chosen = []
    for _ in range(steps):
        threads = choice.threads(tokens)
        choice.note(tokens, threads, cost(threads) / 1e3)
        choice.check_invariants()
        chosen.append(threads)
    return chosen


def test_all_cores_are_taken_where_that_is_quicker() -> None:
    chosen = run(ThreadChoice(2, fixed=False), 1000, lambda threads: 1 / threads)
    assert chosen.count(1) <= 0.02 * 1000


def test_one_fewer_is_taken_as_soon_as_others_want_the_core_and_given_back_after() -> None:
    choice = ThreadChoice(4, fixed=False)
    run(choice, 50, lambda threads: 1 / threads)
    wanted = run(choice, TRY_STEPS, lambda threads: 5.0 if threads == 4 else 0.4)
    assert wanted.count(4) <= 8
    free = run(choice, 4000, lambda threads: 1 / threads)  # the debt of a try is paid meanwhile
    assert free[-20:].count(4) >= 19


@pytest.mark.parametrize("slowdown", [1.1, 1.3, 2.0, 8.0, 1000.0])
@pytest.mark.parametrize("slower", [1, 2])
def test_tries_of_the_slower_number_cost_a_small_share(slower: int, slowdown: float) -> None:
    choice = ThreadChoice(2, fixed=False)
    steps = 20_000
    chosen = run(choice, steps, lambda threads: slowdown if threads == slower else 1.0)
    lost = chosen.count(slower) * (slowdown - 1)
    unpaid = FIRST_STEPS * slowdown if slower == 2 else TRY_STEPS  # before any try; the last one
    assert lost <= LOSS_SHARE * (steps + lost) + unpaid + slowdown


def test_a_number_that_gains_next_to_nothing_is_not_taken() -> None:
    assert run(ThreadChoice(2, fixed=False), 5000, lambda threads: 1 + threads / 100)[-1] == 2


def test_steps_that_are_quick_between_two_turns_of_another_program_do_not_win() -> None:
    turns = itertools.cycle([0.5] * 12 + [3.0] * 12)
    chosen = run(
        ThreadChoice(2, fixed=False), 5000, lambda threads: next(turns) if threads == 2 else 1.0
    )
    assert chosen[1000:].count(2) <= 0.05 * 4000


@pytest.mark.parametrize("quick", [0.6, 0.95])
def test_the_quicker_mean_wins_whatever_single_steps_take(quick: float) -> None:
    chance = random.Random(7)
    costs = {2: lambda: quick * chance.expovariate(1.0), 1: lambda: chance.expovariate(1.0)}
    total_ms = 0.0

    def cost(threads: int) -> float:
        nonlocal total_ms
        milliseconds = costs[threads]()
        total_ms += milliseconds
        return milliseconds

    run(ThreadChoice(2, fixed=False), 30_000, cost)
    assert total_ms <= 1.05 * quick * 30_000


def test_a_first_step_that_finds_nothing_in_caches_starts_no_long_try() -> None:
    cold = itertools.chain([40.0, 15.0], itertools.repeat(10.0))
    chosen = run(
        ThreadChoice(2, fixed=False), 64, lambda threads: next(cold) * (1.8 if threads == 1 else 1)
    )
    assert chosen.count(1) <= 6


def test_steps_of_other_sizes_are_judged_by_themselves() -> None:
    choice = ThreadChoice(2, fixed=False)
    run(choice, 300, lambda threads: float(threads), tokens=1)
    run(choice, 300, lambda threads: 1 / threads, tokens=256)
    assert (choice.threads(1), choice.threads(256)) == (1, 2)


def test_a_number_that_was_set_stays() -> None:
    assert set(run(ThreadChoice(2, fixed=True), 400, lambda threads: 9.0 * threads)) == {2}
    assert set(run(ThreadChoice(1, fixed=False), 400, lambda threads: 1.0)) == {1}


@given(
    st.integers(2, 8),
    st.lists(st.tuples(st.integers(1, 600), st.floats(0, 10)), max_size=600),
)
def test_whatever_steps_take_the_choice_is_one_of_two(
    most: int, steps: list[tuple[int, float]]
) -> None:
    choice = ThreadChoice(most, fixed=False)
    for tokens, seconds in steps:
        threads = choice.threads(tokens)
        assert threads in (most, most - 1)
        choice.note(tokens, threads, seconds)
        choice.check_invariants()
