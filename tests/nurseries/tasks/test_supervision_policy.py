"""What the policy decides about exits, and how its delays grow and shrink."""

from random import Random

import pytest

from triolet.nurseries.tasks.supervision_policy import (
    JITTER,
    Decision,
    Escalate,
    Restart,
    SupervisionPolicy,
)


class Middle(Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def policy_of(**settings: float) -> SupervisionPolicy:
    settings = {"restart_limit": 100, "quiet_s": 60} | settings
    return SupervisionPolicy(Middle(), **settings)  # type: ignore[arg-type]


def exit_after(policy: SupervisionPolicy, uptime_s: float | None, now: float) -> Decision:
    """One run: not ready at all, or an exit `uptime_s` after it was."""
    if uptime_s is not None:
        policy.handle_ready("engine 0", now - uptime_s)
    return policy.handle_exit("engine 0", now)


def delay_s(decision: Decision, now: float) -> float:
    assert isinstance(decision, Restart)
    return round(decision.at - now, 9)


@pytest.mark.parametrize(
    ("exits", "escalates"),
    [
        ([0, 1], False),  # intensity - 1
        ([0, 1, 2], False),  # at the intensity
        ([0, 1, 2, 3], True),  # + 1
        ([0, 1, 2, 59.9], True),
        ([0, 1, 2, 60], False),  # the first restart has left the period
        ([0, 30, 60, 90, 120, 150], False),
    ],
)
def test_the_intensity_is_exact(exits: list[float], escalates: bool) -> None:
    policy = policy_of(restart_limit=3, restart_period_s=60)
    decisions = [exit_after(policy, None, now) for now in exits]
    assert all(isinstance(decision, Restart) for decision in decisions[:-1])
    assert (decisions[-1] == Escalate("engine 0", restarts=3)) == escalates


def test_a_hopeless_exit_is_never_followed_by_a_restart() -> None:
    policy = policy_of()
    exit_after(policy, None, 0)
    assert policy.handle_exit("engine 0", 1, hopeless=True) == Escalate("engine 0", restarts=1)


def test_children_are_counted_each_by_itself_and_anew_after_an_escalation() -> None:
    policy = policy_of(restart_limit=1)
    assert isinstance(policy.handle_exit("engine 0", 0), Restart)
    assert isinstance(policy.handle_exit("engine 1", 0), Restart)
    assert isinstance(policy.handle_exit("engine 0", 0), Escalate)
    assert isinstance(policy.handle_exit("engine 0", 0), Restart)


@pytest.mark.parametrize(
    ("uptimes", "delays"),
    [
        ([None] * 8, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),  # never ready
        ([0.9] * 3, [0.1, 0.2, 0.4]),  # below the minimum uptime
        ([None, None, 1.0, 1.0], [0.1, 0.2, 0.2, 0.2]),  # started well, died early
        ([None, None, 60.0, None], [0.1, 0.2, 0.1, 0.2]),  # a quiet run begins again
        ([5.0, 5.0], [0.1, 0.1]),
    ],
)
def test_failed_starts_double_the_delay(uptimes: list[float | None], delays: list[float]) -> None:
    policy = policy_of()
    seen = []
    for number, uptime_s in enumerate(uptimes):
        now = 1000.0 * number
        seen.append(delay_s(exit_after(policy, uptime_s, now), now))
        policy.check_invariants()
    assert seen == delays


def test_the_jitter_stays_within_its_share() -> None:
    policy = SupervisionPolicy(Random(0), restart_limit=1000)
    delays = [delay_s(exit_after(policy, 5, 0), 0) / 0.1 for _ in range(200)]
    assert 1 - JITTER <= min(delays) < 0.9
    assert 1.1 < max(delays) <= 1 + JITTER


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="backoff_max_s"):
        policy_of(backoff_min_s=10, backoff_max_s=5)
