"""Says what a task waits for, so that the live tree can show it while it lasts.

The mark lives in the task's own context: nothing to register, nothing to forget. Must not know
who reads it; `task_tree` does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import attrs
import trio


@attrs.frozen(eq=False)
class Wait:
    """One wait of one task. `began_s` is on trio's clock; `outer` is the wait it is nested in."""

    what: str
    began_s: float
    task: trio.lowlevel.Task
    outer: "Wait | None"


_wait: ContextVar[Wait | None] = ContextVar("wait", default=None)


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Mark the current task as waiting for `what` ("engine 0 to be ready") inside the block.

    Blocks nest; the innermost is shown. Only this task is marked: a child that is started inside
    the block does not wait for the same.
    """
    task = trio.lowlevel.current_task()
    token = _wait.set(Wait(what, trio.current_time(), task, wait_of(task)))
    try:
        yield
    finally:
        _wait.reset(token)


def wait_of(task: trio.lowlevel.Task) -> Wait | None:
    """What `task` waits for, innermost first; None if it has not said so."""
    wait = task.context.get(_wait)
    if wait is None or wait.task is not task:
        return None  # inherited from the task that started this one
    return wait
