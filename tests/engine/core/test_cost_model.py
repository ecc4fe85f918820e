"""Predictions come near whatever a machine does, and stay sane whatever it is told."""

import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triolet.engine.core.cost_model import STEPS_MIN, CostModel

# Seconds: anyhow, per token, per pair.
TRUTH = (0.004, 2e-4, 2e-8)


def seconds(tokens: int, pairs: int) -> float:
    return TRUTH[0] + TRUTH[1] * tokens + TRUTH[2] * pairs


def trained(steps: int, *, pauses: float = 0.0, noise: float = 0.1) -> CostModel:
    chance, model = random.Random(1), CostModel()
    for _ in range(steps):
        tokens = chance.choice((chance.randint(1, 64), chance.randint(64, 256)))
        pairs = tokens * chance.randint(10, 500)
        took = seconds(tokens, pairs) * chance.uniform(1 - noise, 1 + noise)
        if chance.random() < pauses:
            took += chance.uniform(0.1, 2.0)
        model.learn(tokens, pairs, took)
        model.check_invariants()
    return model


@pytest.mark.parametrize("pauses", [0.0, 0.05])
@pytest.mark.parametrize(("tokens", "pairs"), [(1, 100), (32, 9600), (256, 32768), (256, 102400)])
def test_prediction_is_near_the_truth(tokens: int, pairs: int, pauses: float) -> None:
    predicted = trained(2000, pauses=pauses).predict(tokens, pairs)
    assert predicted == pytest.approx(seconds(tokens, pairs), rel=0.2)


def test_nothing_is_predicted_of_too_few_steps() -> None:
    model = trained(STEPS_MIN - 1)
    assert (model.is_ready, model.predict(256, 0), model.tokens_within(1e-9, 0)) == (
        False, 0.0, math.inf,
    )  # fmt: skip
    assert trained(STEPS_MIN).is_ready


def test_one_pause_moves_nothing_and_a_slower_machine_is_learnt() -> None:
    model = trained(500)
    before = model.predict(64, 64 * 200)
    model.learn(64, 64 * 200, 5.0)
    assert model.predict(64, 64 * 200) == pytest.approx(before, rel=0.1)
    for _ in range(300):
        model.learn(64, 64 * 200, 3 * before)
    assert model.predict(64, 64 * 200) == pytest.approx(3 * before, rel=0.1)


@pytest.mark.parametrize("paused", [{0}, {1}, {3}, {STEPS_MIN - 1}, {0, 1}, {2, 6}])
def test_a_pause_among_the_first_steps_moves_nothing(paused: set[int]) -> None:
    chance, model = random.Random(2), CostModel()
    for number in range(3 * STEPS_MIN):
        tokens = 200 if number % 4 == 1 else 4
        took = seconds(tokens, 100 * tokens) * chance.uniform(0.9, 1.1)
        model.learn(tokens, 100 * tokens, took + 3.0 * (number in paused))
        if model.is_ready:
            assert model.predict(4, 400) < 3 * seconds(4, 400)
    assert model.predict(200, 20_000) == pytest.approx(seconds(200, 20_000), rel=0.5)


@pytest.mark.parametrize("token_s", [3e-5, 1e-3, 1e-2])
@pytest.mark.parametrize("pause_s", [0.0, 2.0])
def test_the_first_prompt_after_many_decodes_is_learnt_at_once(
    token_s: float, pause_s: float
) -> None:
    chance, model = random.Random(1), CostModel()

    def learn(tokens: int, pairs: int, *, paused_s: float = 0.0) -> float:
        took = 0.02 + token_s * tokens + 2e-9 * pairs
        model.learn(tokens, pairs, took * chance.uniform(0.9, 1.1) + paused_s)
        return took

    for number in range(300):
        learn(4, 2000 + number)
    learn(256, 60_000, paused_s=pause_s)
    for _ in range(20 if pause_s else 2):
        took = learn(256, 60_000)
    assert model.predict(256, 60_000) == pytest.approx(took, rel=1.0 if pause_s else 0.2)


def test_tokens_that_fit_take_the_time_there_is() -> None:
    model = trained(2000)
    for context in (0, 100, 2000):
        tokens = model.tokens_within(0.02, context)
        assert model.seconds_more(round(tokens), context) == pytest.approx(0.02, rel=0.05)
    assert model.tokens_within(0.0, 10) == 0.0
    assert model.tokens_within(-1.0, 10) == 0.0


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 10**5),
            st.integers(0, 10**9),
            st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 10.0),
        ),
        max_size=50,
    )
)
def test_no_history_breaks_it(history: list[tuple[int, int, float]]) -> None:
    model = CostModel()
    for tokens, pairs, took in history:
        model.learn(tokens, pairs, min(took, 1e6) if took > 0 else took)
        model.check_invariants()
        assert model.predict(tokens, pairs) >= 0.0
        assert model.tokens_within(0.1, 100) >= 0.0
