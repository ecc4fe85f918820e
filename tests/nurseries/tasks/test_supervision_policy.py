"""Supervision policy: which exit is followed by a restart, and when."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.nurseries.tasks.supervision_policy import (
    JITTER,
    Death,
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
    assert policy.handle_exit("engine 0", 1, Death.HOPELESS) == Escalate("engine 0", restarts=1)


@pytest.mark.parametrize("death", [Death.KILLED, Death.REQUEST])
def test_a_kill_after_it_was_ready_counts_toward_nothing(death: Death) -> None:
    policy = policy_of(restart_limit=1)
    assert isinstance(exit_after(policy, 5.0, 10), Restart)  # its one restart
    for now in range(11, 31):
        policy.handle_ready("engine 0", now)
        assert policy.handle_exit("engine 0", now, death) == Restart("engine 0", at=now)
        policy.check_invariants()
    assert exit_after(policy, 5.0, 31) == Escalate("engine 0", restarts=1)


def test_a_run_that_is_excused_counts_toward_nothing() -> None:
    policy = policy_of(restart_limit=1)
    for run, now in enumerate(range(0, 40, 2), 1):
        policy.handle_starting("engine 0", run)
        policy.handle_ready("engine 0", now)
        if run % 2:  # in company: a fault, as far as is known
            assert delay_s(policy.handle_exit("engine 0", now + 1), now + 1) == 0.1
        else:  # alone: both were of a request
            policy.handle_excused(run - 1)
            policy.handle_excused(run)
            assert policy.is_excused("engine 0")
            assert policy.handle_exit("engine 0", now + 1) == Restart("engine 0", at=now + 1)
        policy.check_invariants()
    assert isinstance(exit_after(policy, 5.0, 41), Restart), "its one restart"
    policy.handle_excused(run)
    assert exit_after(policy, 5.0, 42) == Escalate("engine 0", restarts=1), "it is long over"


def test_a_run_that_is_excused_is_no_other_run_nor_another_childs() -> None:
    policy = policy_of(restart_limit=1)
    for child, run in (("engine 0", 1), ("engine 1", 2)):
        policy.handle_starting(child, run)
        assert isinstance(policy.handle_exit(child, 10), Restart)
    policy.handle_excused(2)
    assert policy.handle_exit("engine 0", 11) == Escalate("engine 0", restarts=1)
    assert isinstance(policy.handle_exit("engine 1", 11), Restart)


@pytest.mark.parametrize("death", [Death.KILLED, Death.SHORTAGE])
def test_what_comes_from_outside_in_a_start_backs_off_and_counts_only_before_the_first_was_ready(
    death: Death,
) -> None:
    policy = policy_of(restart_limit=1)
    assert isinstance(policy.handle_exit("engine 0", 0, death), Restart)
    assert isinstance(policy.handle_exit("engine 0", 1, death), Escalate)
    exit_after(policy, 5.0, 10)
    delays = [delay_s(policy.handle_exit("engine 0", 10, death), 10) for _ in range(8)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert policy.handle_exit("engine 0", 11) == Escalate("engine 0", restarts=1)


_RUNS = st.lists(
    st.tuples(
        st.sampled_from([Death.FAULT, Death.KILLED, Death.HOPELESS]),
        st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0, 30.0, 60.0])),  # uptime
        st.sampled_from([0.0, 0.1, 5.0, 61.0]),  # until it was ready, or died
    ),
    max_size=40,
)


@given(_RUNS)
def test_kills_of_what_was_ready_change_no_other_decision(
    runs: list[tuple[Death, float | None, float]],
) -> None:
    """Of two policies, one sees the kills and the other time alone: they decide alike."""
    seeing, blind = policy_of(quiet_s=1e9), policy_of(quiet_s=1e9)
    for policy in (seeing, blind):  # else the first kill of what was ready says that it can be
        policy.handle_ready("engine 0", 0)
        policy.handle_exit("engine 0", 0, Death.KILLED)
    now = 0.0
    for death, uptime_s, wait_s in runs:
        now += wait_s
        if uptime_s is not None:
            seeing.handle_ready("engine 0", now)
            now += uptime_s
        decision = seeing.handle_exit("engine 0", now, death)
        seeing.check_invariants()
        if death is Death.KILLED and uptime_s is not None:
            assert decision == Restart("engine 0", at=now)
            continue
        if uptime_s is not None:
            blind.handle_ready("engine 0", now - uptime_s)
        assert decision == blind.handle_exit("engine 0", now, death)
        if isinstance(decision, Escalate):
            return


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
