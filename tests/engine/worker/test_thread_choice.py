"""How many threads compute a step, by what steps have taken."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.worker.thread_choice import TRY_EVERY, ThreadChoice

Cost = Callable[[int], float]


def run(choice: ThreadChoice, steps: int, cost: Cost, tokens: int = 8) -> list[int]:
    chosen = []
    for _ in range(steps):
        threads = choice.threads(tokens)
        choice.note(tokens, threads, cost(threads))
        choice.check_invariants()
        chosen.append(threads)
    return chosen


def test_all_cores_are_taken_where_that_is_quicker() -> None:
    chosen = run(ThreadChoice(2, fixed=False), 1000, lambda threads: 1 / threads)
    assert chosen.count(1) <= 2 + 1000 // TRY_EVERY


def test_one_fewer_is_taken_as_soon_as_others_want_the_core_and_given_back_after() -> None:
    choice = ThreadChoice(4, fixed=False)
    run(choice, 50, lambda threads: 1 / threads)
    wanted = run(choice, 2 * TRY_EVERY, lambda threads: 5.0 if threads == 4 else 0.4)
    assert wanted[-20:].count(3) >= 19
    free = run(choice, 2 * TRY_EVERY, lambda threads: 1 / threads)
    assert free[-20:].count(4) >= 19


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
    st.lists(st.tuples(st.integers(1, 600), st.floats(1e-6, 10)), max_size=600),
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
