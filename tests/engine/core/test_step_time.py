"""Predictions follow a machine and survive its pauses; chunks are cut to them; planning waits."""

import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triolet.engine.core.step_time import (
    CHUNK_MIN,
    DELAY_MIN_S,
    LEAD_S,
    SHARE,
    STEPS_MIN,
    StepPace,
    StepTimes,
    TimeBudget,
)
from triolet.engine.messages import FinishReason
from triolet.tests.engine.core.driver import make_scheduler, new_request

# Seconds of the decodes of a step, and of each token of a chunk.
DECODE_S, TOKEN_S = 0.04, 0.001


def trained(
    steps: int = 300, *, decode_s: float = DECODE_S, pauses: float = 0.0, noise: float = 0.1
) -> StepTimes:
    chance, times = random.Random(1), StepTimes()
    for number in range(steps):
        tokens = number % 2 * chance.randint(20, 256)
        took = (decode_s + TOKEN_S * tokens) * chance.uniform(1 - noise, 1 + noise)
        if chance.random() < pauses:
            took += chance.uniform(0.1, 2.0)
        times.learn(tokens, took)
    return times


@pytest.mark.parametrize("pauses", [0.0, 0.05])
@pytest.mark.parametrize("tokens", [0, 20, 256])
def test_a_prediction_is_near_and_seldom_too_short(tokens: int, pauses: float) -> None:
    truth = DECODE_S + TOKEN_S * tokens
    assert 0.9 * truth < trained(pauses=pauses).predict(tokens) < 1.5 * truth


def test_of_too_few_steps_nothing_is_predicted() -> None:
    times = StepTimes()
    assert (times.is_learning, times.is_ready) == (False, False)
    times = trained(STEPS_MIN - 1)
    assert (times.is_learning, times.is_ready, times.predict(256)) == (True, False, 0.0)
    assert (trained(STEPS_MIN).is_learning, trained(STEPS_MIN).is_ready) == (False, True)


def test_one_pause_moves_little_and_a_slower_machine_is_learnt() -> None:
    times = trained()
    before = times.predict(0)
    times.learn(0, 60.0)
    assert times.predict(0) <= 1.5 * before
    for _ in range(20):
        times.learn(0, 3 * before)
    assert times.predict(0) == pytest.approx(3 * before, rel=0.1)


@pytest.mark.parametrize("paused", [0, 1, 2, 6])
def test_a_pause_among_the_first_steps_moves_little(paused: int) -> None:
    times = StepTimes()
    for number in range(2 * STEPS_MIN):
        tokens = number % 2 * 100
        times.learn(tokens, DECODE_S + TOKEN_S * tokens + 5.0 * (number == paused))
    assert times.predict(100) < 2 * (DECODE_S + 100 * TOKEN_S)


def test_decodes_that_took_long_once_do_not_keep_chunks_small() -> None:
    """Since then every step has a chunk, and few decode: their own time is seen no more."""
    times = trained(decode_s=1.0)
    for _ in range(100):
        tokens = TimeBudget(times, 0.1).cut(1000)
        times.learn(tokens, 0.01 + TOKEN_S * tokens)
    assert tokens == pytest.approx(90, rel=0.2)


def test_a_second_chunk_has_what_the_first_and_decodes_left() -> None:
    time = TimeBudget(trained(noise=0.0), 0.1)
    assert time.cut(30) == 30
    assert time.cut(200) == pytest.approx(30, abs=3)
    assert time.cut(200) == 1
    assert time.cut(1) == 1


def test_without_time_the_first_chunk_moves_on_and_none_begins_after_it() -> None:
    time = TimeBudget(trained(decode_s=0.2), 0.1)
    assert time.has_time(), "or a prompt might never begin"
    assert time.cut(200) == CHUNK_MIN
    assert not time.has_time()
    assert time.cut(200) == 1
    assert TimeBudget(trained(decode_s=0.2), 0.1).cut(5) == 5


@pytest.mark.parametrize(("times", "target_s"), [(trained(), 0.0), (StepTimes(), 1e-9)])
def test_without_a_target_or_steps_nothing_is_cut(times: StepTimes, target_s: float) -> None:
    time = TimeBudget(times, target_s)
    assert time.cut(10_000) == 10_000
    assert time.has_time()


def test_the_scheduler_learns_from_steps_and_cuts_by_it() -> None:
    scheduler = make_scheduler(
        max_num_seqs=2, max_num_batched_tokens=256, kv_blocks=200, block_tokens=16
    )
    scheduler.step_time_target_s = 0.1
    chance = random.Random(5)
    for arrival in range(100):
        length = chance.randint(20, 250)
        request = new_request(f"r{arrival}", arrival=arrival, prompt=length, max_model_len=2000)
        scheduler.add(request)
        while not request.is_finished:
            scheduled = scheduler.schedule()
            assert scheduled is not None
            assert scheduler.complete() is scheduled
            tokens = sum(scheduled.step.token_counts)
            scheduler.step_times.learn(scheduled.chunk_tokens, TOKEN_S * tokens)
            if scheduled.sampling:
                request.token_ids.append(1)
                scheduler.end(request, FinishReason.LENGTH)
        if arrival > 50:
            assert tokens <= 105
    assert scheduler.step_times.predict(100) == pytest.approx(0.1, rel=0.05)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**5),
            st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 10.0),
        ),
        max_size=50,
    )
)
def test_no_history_breaks_it(history: list[tuple[int, float]]) -> None:
    times = StepTimes()
    for tokens, took in history:
        times.learn(tokens, took)
        assert 0.0 <= times.predict(tokens) < math.inf
        assert times.tokens_within(0.1) > 0.0


def test_a_long_step_is_let_run_before_the_next_is_planned() -> None:
    pace = StepPace()
    pace.begin(0.1, now=5.0)
    assert pace.is_early(5.0)
    due = pace.next_deadline()
    assert due == pytest.approx(5.0 + SHARE * 0.1 - LEAD_S)
    assert not pace.is_early(due)
    assert pace.next_deadline() == math.inf, "it is not asked for twice"


@pytest.mark.parametrize("predicted_s", [0.0, 1e-4, LEAD_S, (DELAY_MIN_S + LEAD_S) * 0.99 / SHARE])
def test_a_short_step_and_an_unknown_one_hold_nothing(predicted_s: float) -> None:
    pace = StepPace()
    pace.begin(predicted_s, now=5.0)
    assert not pace.is_early(5.0)
    assert pace.next_deadline() == math.inf


def test_the_next_step_begins_anew() -> None:
    pace = StepPace()
    pace.begin(0.1, now=5.0)
    assert pace.is_early(5.0)
    pace.begin(0.0, now=5.01)
    assert pace.next_deadline() == math.inf
    assert not pace.is_early(5.01)
