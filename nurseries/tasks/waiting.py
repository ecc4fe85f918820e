"""Marks of what a task waits for, shown by the live tree while the wait lasts.

The mark lives in the task's own context: nothing to register, nothing to forget. A mark costs about
a microsecond, as much as a lock: around the wait for a burst of messages it cannot be measured.
"""

from contextvars import ContextVar, Token

import attrs
import trio


@attrs.define(eq=False)
class Wait:
    """One wait of one task, which lasts as long as its block; `outer` is the wait it is nested in.

    `began_s` is on trio's clock; None if the task waits for this over and over, all its life.
    """

    what: str
    began_s: float | None = None
    task: trio.lowlevel.Task | None = None
    outer: "Wait | None" = None
    _token: "Token[Wait | None] | None" = attrs.field(default=None, init=False, repr=False)

    def __enter__(self) -> None:
        self.task, outer = trio.lowlevel.current_task(), _wait.get()
        if outer is not None and outer.task is self.task:  # if not, it is of who started this one
            self.outer = outer
        self.began_s = trio.current_time()
        self._token = _wait.set(self)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _wait.reset(self._token)


_wait: ContextVar[Wait | None] = ContextVar("wait", default=None)


def waiting_for(what: str) -> Wait:
    """Mark the current task as waiting for `what` ("engine 0 to be ready") inside the block.

    Blocks nest; the innermost is shown. Only this task is marked: a child that is started inside
    the block does not wait for the same.
    """
    return Wait(what)


def always_waits_for(what: str) -> None:
    """Mark the current task as one that waits for `what` ("frames") whenever it says nothing else.

    For a task whose waits are in a room below this one; the tree cannot show since when it waits.
    """
    _wait.set(Wait(what, task=trio.lowlevel.current_task()))


def waits_no_more() -> None:
    """Take back what `always_waits_for` said."""
    _wait.set(None)


def wait_of(task: trio.lowlevel.Task) -> Wait | None:
    """What `task` waits for, innermost first; None without a mark."""
    wait = task.context.get(_wait)
    if wait is None or wait.task is not task:
        return None  # inherited from the task that started this one
    return wait
