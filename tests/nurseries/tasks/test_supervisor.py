"""Supervision: what the policy decides, and that the supervisor carries it out."""

from collections.abc import Sequence
from random import Random

import attrs
import pytest
import trio
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
from triolet.nurseries.tasks.supervisor import ChildEnded, RestartLimitExceeded, supervise

Clock = trio.testing.MockClock


class Middle(Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@attrs.define
class Runs:
    """A child whose runs are given: what each raises, None to return."""

    endings: Sequence[BaseException | None]
    uptime_s: float = 2.0
    starts_s: list[float] = attrs.field(factory=list, init=False)
    began_s: float = attrs.field(factory=trio.current_time, init=False)

    async def run(self, *, task_status: trio.TaskStatus[int]) -> None:
        self.starts_s.append(round(trio.current_time() - self.began_s, 6))
        task_status.started(len(self.starts_s))
        await trio.sleep(self.uptime_s)
        ending = self.endings[len(self.starts_s) - 1]
        if ending is not None:
            raise ending


def death_of(failure: Exception) -> Death:
    match failure:
        case LookupError():
            return Death.HOPELESS
        case TimeoutError():
            return Death.KILLED
    return Death.FAULT


def policy_of(**settings: float) -> SupervisionPolicy:
    return SupervisionPolicy(Middle(), **settings)  # type: ignore[arg-type]


async def test_restarts_to_the_limit_and_raises_from_the_last_failure(
    autojump_clock: Clock,
) -> None:
    failures = [ValueError(number) for number in range(4)]
    runs = Runs(failures)
    with pytest.raises(RestartLimitExceeded, match="engine 0 failed again after 3") as caught:
        await supervise(runs.run, child="engine 0", policy=policy_of())
    assert caught.value.__cause__ is failures[-1]
    assert runs.starts_s == [0, 2.1, 4.2, 6.3]


async def test_a_hopeless_failure_escalates_at_once(autojump_clock: Clock) -> None:
    runs = Runs([ValueError("once"), LookupError("no such model")])
    with pytest.raises(RestartLimitExceeded, match="after 1 restarts") as caught:
        await supervise(runs.run, child="engine 0", policy=policy_of(), death_of=death_of)
    assert isinstance(caught.value.__cause__, LookupError)
    assert len(runs.starts_s) == 2


async def test_what_is_killed_is_run_again_at_once_as_often_as_it_takes(
    autojump_clock: Clock,
) -> None:
    runs = Runs([TimeoutError()] * 20 + [LookupError()])
    with pytest.raises(RestartLimitExceeded, match="engine 0 failed; restarting"):
        await supervise(runs.run, child="engine 0", policy=policy_of(), death_of=death_of)
    assert runs.starts_s == [2.0 * n for n in range(21)]


async def test_a_permanent_child_that_returns_has_failed(autojump_clock: Clock) -> None:
    runs = Runs([None, None])
    with pytest.raises(RestartLimitExceeded) as caught:
        await supervise(runs.run, child="engine 0", policy=policy_of(restart_limit=1))
    assert len(runs.starts_s) == 2
    assert isinstance(caught.value.__cause__, ChildEnded)


async def test_a_failure_in_a_nursery_of_the_childs_comes_bare(autojump_clock: Clock) -> None:
    async def child(*, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery(), trio.open_nursery():
            raise ValueError("deep inside")

    with pytest.raises(RestartLimitExceeded) as caught:
        await supervise(child, child="engine 0", policy=policy_of(restart_limit=0))
    assert isinstance(caught.value.__cause__, ValueError)


async def test_cancellation_is_not_a_failure(autojump_clock: Clock) -> None:
    runs = Runs([ValueError()] * 100)
    with trio.move_on_after(5):
        await supervise(runs.run, child="engine 0", policy=policy_of())
        raise AssertionError("it returned")
    assert runs.starts_s == [0, 2.1, 4.2]


async def test_what_is_no_exception_comes_through(autojump_clock: Clock) -> None:
    with pytest.raises(KeyboardInterrupt):
        await supervise(Runs([KeyboardInterrupt()]).run, child="engine 0", policy=policy_of())


async def test_a_run_that_starts_twice_is_a_failure(autojump_clock: Clock) -> None:
    async def child(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        task_status.started()

    with pytest.raises(RestartLimitExceeded) as caught:
        await supervise(child, child="engine 0", policy=policy_of(restart_limit=0))
    assert "said twice" in str(caught.value.__cause__)


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
