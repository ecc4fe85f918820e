"""Runs a child again and again, as its policy decides, until it is forgotten or given up.

The child is any async function that says when it is ready: a process, a pool, a loop. What is
decided after an exit is `supervision_policy`'s affair; this only carries it out.
"""

from collections.abc import Awaitable, Callable
from typing import Any, assert_never

import attrs
import trio

from .error_groups import single_error
from .supervision_policy import Decision, Escalate, Forget, Restart, RestartType, SupervisionPolicy
from .waiting import waiting_for


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
    """A child returned that never should, or one returned before it had said that it was ready.

    To a supervisor this is a failure as good as any other.
    """

    child: str

    def __str__(self) -> str:
        return f"{self.child} ended by itself"


async def supervise(
    async_fn: Callable[..., Awaitable[object]],
    *args: object,
    child: str,
    policy: SupervisionPolicy,
    restart_type: RestartType = RestartType.PERMANENT,
    hopeless: tuple[type[Exception], ...] = (),
    on_failure: Callable[[Exception, Decision], None] | None = None,
    on_ready: Callable[[Any], None] | None = None,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run `async_fn(*args, task_status=…)` until the policy forgets or gives up the child.

    Started with the value of the first run that is ready; `on_ready` hears the value of each run,
    `on_failure` each failure with what was decided. Both are called in the loop and must not block.
    A permanent child never returns by itself. A failure of a type in `hopeless` is never followed
    by a restart.

    *Raises* `RestartLimitExceeded` from the last failure. An error of `on_failure` or `on_ready` is
    a bug of the owner's and comes through; so does whatever is no `Exception`.

    *Cancellation* is not a failure: the run is cancelled, nothing is restarted.
    """
    readiness = _Readiness(child, policy, on_ready, task_status)
    while True:
        readiness.run_began()
        failure = await _run_once(async_fn, args, readiness)
        abnormal = failure is not None
        if failure is None and (restart_type is RestartType.PERMANENT or not readiness.ready):
            failure = ChildEnded(child)
        decision = policy.handle_exit(
            child,
            restart_type,
            abnormal=abnormal,
            now=trio.current_time(),
            hopeless=isinstance(failure, hopeless),
        )
        if failure is not None and on_failure is not None:
            on_failure(failure, decision)
        match decision:
            case Restart(at=at):
                with waiting_for(f"the time to restart {child}"):
                    await trio.sleep_until(at)
            case Forget():
                return
            case Escalate(restarts=restarts):
                raise RestartLimitExceeded(child, restarts) from failure
            case _:
                assert_never(decision)


async def _run_once(
    async_fn: Callable[..., Awaitable[object]], args: tuple[object, ...], readiness: "_Readiness"
) -> Exception | None:
    try:
        await async_fn(*args, task_status=readiness)
    except Exception as error:  # the one place that may: a supervisor's work is failures
        if readiness.owners_error is not None:
            raise
        bare = single_error(error)
        assert isinstance(bare, Exception)  # a group that is an Exception holds nothing else
        return bare
    return None


@attrs.define(eq=False)
class _Readiness(trio.TaskStatus[Any]):
    """The `task_status` of every run: tells the policy, the owner, and once whoever started us."""

    child: str
    policy: SupervisionPolicy
    on_ready: Callable[[Any], None] | None
    task_status: trio.TaskStatus[Any]
    # Of the current run.
    ready: bool = attrs.field(default=False, init=False)
    # What `on_ready` raised; then the run's error is not the child's failure.
    owners_error: Exception | None = attrs.field(default=None, init=False)
    _ever_ready: bool = attrs.field(default=False, init=False)

    def run_began(self) -> None:
        self.ready = False

    def started(self, value: Any = None) -> None:
        if self.ready:
            raise RuntimeError(f"{self.child} said twice that it had started")
        self.ready = True
        self.policy.handle_ready(self.child, trio.current_time())
        if self.on_ready is not None:
            try:
                self.on_ready(value)
            except Exception as error:
                self.owners_error = error
                raise
        if not self._ever_ready:
            self._ever_ready = True
            self.task_status.started(value)
