"""Supervisor: runs a child again and again, as its policy decides, until it is given up.

The child is any async function that says when it is ready: a process, a pool, a loop. The decision
after an exit is `supervision_policy`'s.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, assert_never

import attrs
import trio

from .background import waiting_for
from .service import single_error
from .supervision_policy import Death, Escalate, Restart, SupervisionPolicy


@attrs.frozen
class RestartLimitExceeded(Exception):
    """`child` failed after `restarts` restarts within the period. Its last failure is the
    `__cause__`.
    """

    child: str
    restarts: int

    def __str__(self) -> str:
        again = f" again after {self.restarts} restarts" if self.restarts else ""
        return f"{self.child} failed{again}; restarting does not help"


@attrs.frozen
class ChildEnded(Exception):
    """A child returned, which to a supervisor is a failure like any other."""

    child: str

    def __str__(self) -> str:
        return f"{self.child} ended by itself"


def always_a_fault(failure: Exception) -> Death:
    """Judge every end a fault: for children that nothing else ends."""
    return Death.FAULT


async def supervise(
    async_fn: Callable[..., Awaitable[object]],
    *args: object,
    child: str,
    policy: SupervisionPolicy,
    death_of: Callable[[Exception], Death] = always_a_fault,
) -> NoReturn:
    """Run `async_fn(*args, task_status=…)` until the policy gives up the child.

    `death_of` says what a failure means for the next run.

    *Raises* `RestartLimitExceeded` from the last failure; what is no `Exception` comes through.

    *Cancellation* is not a failure: the run is cancelled, nothing is restarted.
    """
    while True:
        failure = await _run_once(async_fn, args, _Status(child, policy))
        decision = policy.handle_exit(child, trio.current_time(), death_of(failure))
        match decision:
            case Restart(at=at):
                with waiting_for(f"the time to restart {child}"):
                    await trio.sleep_until(at)
            case Escalate(restarts=restarts):
                raise RestartLimitExceeded(child, restarts) from failure
            case _:
                assert_never(decision)


async def _run_once(
    async_fn: Callable[..., Awaitable[object]], args: tuple[object, ...], status: "_Status"
) -> Exception:
    try:
        await async_fn(*args, task_status=status)
    except Exception as error:  # the one place that may: a supervisor's work is failures
        bare = single_error(error)
        assert isinstance(bare, Exception)  # a group that is an Exception holds nothing else
        return bare
    return ChildEnded(status.child)


@attrs.define(eq=False)
class _Status(trio.TaskStatus[Any]):
    """The `task_status` of one run, which reports to the policy that it is ready."""

    child: str
    policy: SupervisionPolicy
    ready: bool = attrs.field(default=False, init=False)

    def started(self, value: Any = None) -> None:
        if self.ready:
            raise RuntimeError(f"{self.child} said twice that it had started")
        self.ready = True
        self.policy.handle_ready(self.child, trio.current_time())
