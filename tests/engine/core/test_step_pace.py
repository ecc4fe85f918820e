"""A long step is followed by the plan of the next one late, a short or unknown one at once."""

import math

import pytest

from triolet.engine.core.step_pace import HOLD_MIN_S, LEAD_S, SHARE, StepPace


def test_a_long_step_is_let_run_before_the_next_is_planned() -> None:
    pace = StepPace()
    pace.begin(0.1, now=5.0)
    assert pace.holds(5.0)
    due = pace.next_deadline()
    assert due == pytest.approx(5.0 + SHARE * 0.1 - LEAD_S)
    assert not pace.holds(due)
    assert pace.next_deadline() == math.inf, "it is not asked for twice"


@pytest.mark.parametrize("predicted_s", [0.0, 1e-4, LEAD_S, (HOLD_MIN_S + LEAD_S) * 0.99 / SHARE])
def test_a_short_step_and_one_of_which_nothing_is_known_hold_nothing(predicted_s: float) -> None:
    pace = StepPace()
    pace.begin(predicted_s, now=5.0)
    assert not pace.holds(5.0)
    assert pace.next_deadline() == math.inf


def test_the_next_step_begins_anew() -> None:
    pace = StepPace()
    pace.begin(0.1, now=5.0)
    assert pace.holds(5.0)
    pace.begin(0.0, now=5.01)
    assert pace.next_deadline() == math.inf
    assert not pace.holds(5.01)
