"""When a spare is due: after calm, never beside another, later and later while they are lost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.processes.readiness import (
    CALM_S,
    DELAY_MAX_S,
    DELAY_MIN_S,
    LASTED_S,
    SparePolicy,
    Unrest,
)


def test_calm_begins_when_the_last_one_is_ready() -> None:
    unrest = Unrest()
    assert unrest.calm_since_s == math.inf  # nobody is up yet
    unrest.handle_missing("engine 0")
    unrest.handle_missing("frontend 0")
    assert not unrest.handle_settled("engine 0", 1.0)
    assert not unrest.handle_settled("engine 0", 2.0)
    assert unrest.calm_since_s == math.inf
    assert unrest.handle_settled("frontend 0", 3.0)
    assert unrest.calm_since_s == 3.0
    assert not unrest.handle_settled("frontend 0", 4.0), "given up after it was ready"
    assert unrest.calm_since_s == 3.0
    unrest.handle_missing("engine 0")
    assert unrest.calm_since_s == math.inf


def test_a_spare_is_due_after_a_while_of_calm_and_one_at_a_time() -> None:
    policy = SparePolicy()
    assert policy.next_start(math.inf) == math.inf
    assert policy.next_start(5.0) == 5.0 + CALM_S
    policy.handle_started(6.0)
    assert policy.next_start(5.0) == math.inf
    policy.handle_taken()
    assert policy.next_start(9.0) == 9.0 + CALM_S


def test_lost_ones_are_replaced_later_and_later() -> None:
    policy, now, delays = SparePolicy(), 0.0, []
    for _ in range(9):
        policy.handle_started(now)
        policy.handle_lost(now)
        delays.append(policy.next_start(-100.0) - now)
        now += 1000.0
    assert delays[:3] == [DELAY_MIN_S, 2 * DELAY_MIN_S, 4 * DELAY_MIN_S]
    assert delays[-2:] == [DELAY_MAX_S, DELAY_MAX_S]
    policy.handle_started(now)
    policy.handle_lost(now + LASTED_S)
    assert policy.next_start(-100.0) == now + LASTED_S + DELAY_MIN_S


def test_one_that_was_of_use_ends_the_row_of_losses() -> None:
    policy = SparePolicy()
    policy.handle_started(0.0)
    policy.handle_lost(0.0)
    policy.handle_started(5.0)
    policy.handle_taken()
    assert policy.losses == 0


def test_more_than_one_in_a_place_is_refused() -> None:
    policy = SparePolicy()
    with pytest.raises(AssertionError):
        policy.handle_taken()
    policy.handle_started(0.0)
    with pytest.raises(AssertionError):
        policy.handle_started(0.0)


CHILDREN = st.sampled_from(["engine 0", "engine 1", "frontend 0"])
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["missing", "settled", "start", "taken", "lost", "wait"]),
        CHILDREN,
        st.floats(0.0, 100.0),
    ),
    max_size=60,
)


@given(events=EVENTS)
def test_whatever_happens_no_spare_is_due_in_unrest_or_early(
    events: list[tuple[str, str, float]],
) -> None:
    unrest, policy, now = Unrest(), SparePolicy(), 0.0
    missing: set[str] = set()
    calm_s, lost_s = math.inf, -math.inf  # a separate reading: when calm began, the last loss
    for what, child, seconds in events:
        due_s = policy.next_start(unrest.calm_since_s)
        match what:
            case "wait":
                now += seconds
            case "missing":
                unrest.handle_missing(child)
                missing.add(child)
            case "settled":
                was = bool(missing)
                missing.discard(child)
                assert unrest.handle_settled(child, now) == (was and not missing)
                calm_s = now if was and not missing else calm_s
            case "start" if due_s <= now:
                assert not missing, "not while somebody is wanted"
                assert now >= calm_s + CALM_S
                assert now >= lost_s + DELAY_MIN_S
                policy.handle_started(now)
            case "taken" if policy.since_s is not None:
                policy.handle_taken()
            case "lost" if policy.since_s is not None:
                policy.handle_lost(now)
                lost_s = now
                assert policy.next_start(-math.inf) <= now + DELAY_MAX_S
        unrest.check_invariants()
        policy.check_invariants()
