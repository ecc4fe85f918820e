"""Says what a task waits for, so that the live tree can show it while it lasts.

The mark lives in the task's own context: nothing to register, nothing to forget. A mark costs about
a microsecond, as much as a lock: around the wait for a burst of messages it cannot be measured.
Must not know who reads it; `task_tree` does.
"""

from contextvars import ContextVar, Token
from types import TracebackType

import attrs
import trio


@attrs.define(eq=False)
class Wait:
    """One wait of one task; `outer` is the wait it is nested in.

    `began_s` is on trio's clock; None if the task waits for this over and over, all its life.
    """

    what: str
    began_s: float | None
    task: trio.lowlevel.Task
    outer: "Wait | None"


_wait: ContextVar[Wait | None] = ContextVar("wait", default=None)


@attrs.define(eq=False)
class _Waiting:
    what: str
    _token: Token[Wait | None] | None = None

    def __enter__(self) -> None:
        task, outer = trio.lowlevel.current_task(), _wait.get()
        if outer is not None and outer.task is not task:
            outer = None  # inherited from the task that started this one
        self._token = _wait.set(Wait(self.what, trio.current_time(), task, outer))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _wait.reset(self._token)


def waiting_for(what: str) -> _Waiting:
    """Mark the current task as waiting for `what` ("engine 0 to be ready") inside the block.

    Blocks nest; the innermost is shown. Only this task is marked: a child that is started inside
    the block does not wait for the same.
    """
    return _Waiting(what)


def always_waits_for(what: str) -> None:
    """Mark the current task as one that waits for `what` ("frames") whenever it says nothing else.

    For a task whose waits are in a room that knows no tree: it cannot be said since when it waits.
    """
    _wait.set(Wait(what, None, trio.lowlevel.current_task(), None))


def waits_no_more() -> None:
    """Take back what `always_waits_for` said."""
    _wait.set(None)


def wait_of(task: trio.lowlevel.Task) -> Wait | None:
    """What `task` waits for, innermost first; None if it has not said so."""
    wait = task.context.get(_wait)
    if wait is None or wait.task is not task:
        return None  # inherited from the task that started this one
    return wait
