"""The supervisor restarts as decided, escalates from the last failure, and obeys cancellation."""

from collections.abc import Sequence
from random import Random

import attrs
import pytest
import trio

from triolet.nurseries.tasks.supervision_policy import SupervisionPolicy
from triolet.nurseries.tasks.supervisor import ChildEnded, RestartLimitExceeded, supervise

Clock = trio.testing.MockClock


class Middle(Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@attrs.define
class Runs:
    """A child whose runs are told beforehand: what each raises, None to return."""

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


def policy_of(limit: int = 3) -> SupervisionPolicy:
    return SupervisionPolicy(Middle(), restart_limit=limit)


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
        await supervise(runs.run, child="engine 0", policy=policy_of(), hopeless=(LookupError,))
    assert isinstance(caught.value.__cause__, LookupError)
    assert len(runs.starts_s) == 2


async def test_a_permanent_child_that_returns_has_failed(autojump_clock: Clock) -> None:
    runs = Runs([None, None])
    with pytest.raises(RestartLimitExceeded) as caught:
        await supervise(runs.run, child="engine 0", policy=policy_of(limit=1))
    assert len(runs.starts_s) == 2
    assert isinstance(caught.value.__cause__, ChildEnded)


async def test_a_failure_in_a_nursery_of_the_childs_comes_bare(autojump_clock: Clock) -> None:
    async def child(*, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery(), trio.open_nursery():
            raise ValueError("deep inside")

    with pytest.raises(RestartLimitExceeded) as caught:
        await supervise(child, child="engine 0", policy=policy_of(limit=0))
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
        await supervise(child, child="engine 0", policy=policy_of(limit=0))
    assert "said twice" in str(caught.value.__cause__)
