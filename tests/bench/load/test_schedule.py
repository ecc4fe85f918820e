"""The same seed says the same; the bounds hold; open and closed loop arrive as they should."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.load.schedule import Load, Schedule, make_prompt
from triolet.engine.errors import InvalidParameter


def arrivals(load: Load) -> list[float]:
    """When each request is due if every one ends at once."""
    schedule, found = Schedule(load), []
    while not schedule.is_over:
        ask = schedule.take(schedule.next_due_s())
        assert ask is not None
        found.append(ask.due_s)
        schedule.handle_end()
    return found


def test_an_open_loop_arrives_by_its_seed_at_its_rate() -> None:
    load = Load(requests=2000, in_flight=1, rate=50.0, seed=3)
    times = arrivals(load)
    assert times == arrivals(load) == sorted(times)
    assert times != arrivals(Load(requests=2000, in_flight=1, rate=50.0, seed=4))
    assert 2000 / times[-1] == pytest.approx(50.0, rel=0.1)


def test_an_open_loop_counts_from_when_it_was_due() -> None:
    schedule = Schedule(Load(requests=2, in_flight=1, rate=10.0))
    due_s = schedule.next_due_s()
    assert schedule.take(due_s - 0.001) is None
    first = schedule.take(due_s)
    assert first is not None
    assert first.due_s == due_s
    assert schedule.take(1000.0) is None, "the one place is taken"
    assert schedule.next_due_s() == math.inf
    schedule.handle_end()
    late = schedule.take(1000.0)
    assert late is not None
    assert late.due_s < 1000.0


def test_a_closed_loop_sends_when_a_place_is_free() -> None:
    schedule = Schedule(Load(requests=3, in_flight=2))
    numbers = [ask.number for ask in (schedule.take(0.0), schedule.take(0.0)) if ask is not None]
    assert numbers == [0, 1]
    assert schedule.take(9.0) is None
    schedule.handle_end()
    third = schedule.take(9.0)
    assert third is not None
    assert (third.number, third.due_s) == (2, 9.0)
    schedule.handle_end()
    schedule.handle_end()
    assert schedule.is_over


def test_a_prompt_has_its_length_and_is_of_its_seed_and_number() -> None:
    load = Load(requests=1, prompt_words=20, seed=5)
    assert len(make_prompt(load, 7).split()) == 20
    assert make_prompt(load, 7) == make_prompt(load, 7) != make_prompt(load, 8)
    assert make_prompt(load, 7) != make_prompt(Load(requests=1, prompt_words=20, seed=6), 7)


def test_prompts_may_be_of_different_lengths() -> None:
    load = Load(requests=1, prompt_words=3, prompt_words_max=6)
    lengths = {len(make_prompt(load, number).split()) for number in range(60)}
    assert lengths == {3, 4, 5, 6}
    with pytest.raises(InvalidParameter, match="prompt_words_max"):
        Load(requests=1, prompt_words=3, prompt_words_max=2)


@pytest.mark.parametrize(
    "fields",
    [{"requests": 0}, {"in_flight": 0}, {"tokens": -1}, {"rate": -1.0}, {"rate": math.nan}],
)
def test_a_load_out_of_bounds_names_the_field(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(fields))):
        Load(**{"requests": 1, **fields})  # type: ignore[arg-type]


@given(st.integers(1, 20), st.integers(1, 5), st.sampled_from([0.0, 2.0]), st.lists(st.booleans()))
def test_invariants_hold_whatever_happens(
    requests: int, in_flight: int, rate: float, steps: list[bool]
) -> None:
    schedule = Schedule(Load(requests=requests, in_flight=in_flight, rate=rate))
    for now, ends in enumerate(steps):
        if ends and schedule.in_flight:
            schedule.handle_end()
        else:
            schedule.take(float(now))
        schedule.check_invariants()
