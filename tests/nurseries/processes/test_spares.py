"""Spares as a machine: when one is due, and when all are ready. How fleets use them: `runtime`."""

import math

import trio
import trio.testing

from triolet.nurseries.processes.spares import (
    DELAY_MAX_S,
    DELAY_MIN_S,
    LASTED_S,
    SETTLE_S,
    Readiness,
    SparePolicy,
)


async def test_all_are_ready_when_the_last_one_is(mock_clock: trio.testing.MockClock) -> None:
    readiness = Readiness()
    changed = readiness.changed.next
    assert readiness.all_ready_since_s == math.inf  # none is up yet
    readiness.handle_starting("engine 0")
    readiness.handle_starting("frontend 0")
    for _ in range(2):
        readiness.handle_ready("engine 0")
        assert readiness.all_ready_since_s == math.inf
    assert not changed.is_set()
    mock_clock.jump(3.0)
    readiness.handle_ready("frontend 0")
    assert changed.is_set()
    ready_s = readiness.all_ready_since_s
    assert ready_s == trio.current_time()
    mock_clock.jump(1.0)
    readiness.handle_ready("frontend 0")  # given up after it was ready
    assert readiness.all_ready_since_s == ready_s
    readiness.handle_starting("engine 0")
    assert readiness.all_ready_since_s == math.inf
    readiness.check_invariants()


def test_a_spare_is_due_after_a_while_and_one_at_a_time() -> None:
    policy = SparePolicy()
    assert policy.next_start(math.inf) == math.inf
    assert policy.next_start(5.0) == 5.0 + SETTLE_S
    policy.handle_started(6.0)
    assert policy.next_start(5.0) == math.inf
    policy.handle_good()
    assert policy.next_start(9.0) == 9.0 + SETTLE_S


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
    policy.handle_good()
    assert policy.losses == 0
