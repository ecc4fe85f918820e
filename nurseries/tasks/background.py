"""Background tasks: named, with a handle that cancels them and waits for their end.

All are started here. Each is a child of a nursery, has a name by which it is found in the live
tree, and a cancel scope of its own. The handle travels in the task's context, so that `task_tree`
finds it without any registry. What a task waits for is a mark in the same context; it costs about a
microsecond, as much as a lock: around the wait for a burst of messages it cannot be measured.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from functools import partial
from typing import Any

import attrs
import trio


@attrs.frozen
class CancelledBeforeStart(Exception):
    """A background task was cancelled through its handle before it had said that it started."""

    task: str

    def __str__(self) -> str:
        return f"{self.task} was cancelled before it had started"


@attrs.define(eq=False)
class BackgroundTask:
    """The handle of one background task.

    `value` is what the task passed to `task_status.started()`; None for a task that was started
    "soon". A cancelled task ends quietly; a task that raises ends its nursery, as any child does.
    """

    name: str
    # Shown by the live tree while the task marks no wait of its own; see `waiting`.
    waits_for: str = ""
    takes_along: trio.CancelScope | None = attrs.field(default=None, repr=False)
    value: Any = attrs.field(default=None, init=False)
    # Whether it ended because it was cancelled through its handle, and for no other cause.
    cancelled: bool = attrs.field(default=False, init=False)

    # The trio task that runs it, None before its first step and after its last. Children of that
    # task inherit its context, and with it the handle; `task` is not theirs.
    task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False, repr=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False, repr=False)

    @property
    def ended(self) -> bool:
        """Whether the task has ended, for whatever cause; it never runs again."""
        return self._ended.is_set()

    @property
    def cancel_called(self) -> bool:
        """Whether this task was cancelled through its handle."""
        return self._scope.cancel_called

    def cancel(self, reason: str) -> None:
        """Cancel this task alone; `reason` is a sentence for the log. Harmless when it has ended.

        The task may still be cleaning up afterwards: `wait_ended` says when that is over.
        """
        self._scope.cancel(reason)

    def shield(self) -> None:
        """Shield the task from every scope around its nursery; only this handle cancels it.

        It must then be cancelled by its owner; `open_service` does so for its services.
        """
        self._scope.shield = True

    @property
    def is_shielded(self) -> bool:
        """Whether only this handle cancels the task."""
        return self._scope.shield

    async def wait_ended(self) -> None:
        """Return when the task, its cleanup and all its children are over."""
        await self._ended.wait()


_background_task: ContextVar[BackgroundTask | None] = ContextVar("background_task", default=None)


def background_task_of(task: trio.lowlevel.Task) -> BackgroundTask | None:
    """The handle of `task` if it was started as a background task, None for any other task."""
    handle = task.context.get(_background_task)
    if handle is None or handle.task is not task:
        return None
    return handle


async def start_background_task(
    nursery: trio.Nursery,
    async_fn: Callable[..., Awaitable[object]],
    *args: object,
    name: str,
    waits_for: str = "",
) -> BackgroundTask:
    """Start `async_fn(*args, task_status=…)` in `nursery` and wait until it says it has started.

    `waits_for` ("frames") is for a task that always waits for the same and cannot say so itself.

    Raises what `async_fn` raises before that, `CancelledBeforeStart` if its handle cancels it, and
    `RuntimeError` if it returns.
    Cancelled while waiting: the task is cancelled and has ended.
    """
    handle = BackgroundTask(name, waits_for)
    try:
        handle.value = await nursery.start(partial(_run_started, handle, async_fn, args), name=name)
    except RuntimeError:  # trio's word for a child that ended too early
        if handle.cancelled:
            raise CancelledBeforeStart(name) from None
        raise
    return handle


def start_background_task_soon(
    nursery: trio.Nursery,
    async_fn: Callable[..., Awaitable[object]],
    *args: object,
    name: str,
    takes_along: trio.CancelScope | None = None,
) -> BackgroundTask:
    """Start `async_fn(*args)` in `nursery` without waiting; it has not run when this returns.

    Cancelled through its handle, it cancels `takes_along` as well: those who would wait for it.
    """
    handle = BackgroundTask(name, takes_along=takes_along)
    nursery.start_soon(partial(run_background_task, handle, async_fn, args), name=name)
    return handle


async def _run_started(
    handle: BackgroundTask,
    async_fn: Callable[..., Awaitable[object]],
    args: tuple[object, ...],
    *,
    task_status: trio.TaskStatus[Any],
) -> None:
    await run_background_task(handle, partial(async_fn, task_status=task_status), args)


async def run_background_task(
    handle: BackgroundTask, async_fn: Callable[..., Awaitable[object]], args: tuple[object, ...]
) -> None:
    """Run as the task of `handle`, for callers that start it in another way (see `service`).

    Raises what `async_fn` raises.
    """
    handle.task = trio.lowlevel.current_task()
    _background_task.set(handle)
    if handle.waits_for:
        always_waits_for(handle.waits_for)
    try:
        with handle._scope:
            await async_fn(*args)
        handle.cancelled = handle._scope.cancelled_caught
        if handle.cancelled and handle.takes_along is not None:
            handle.takes_along.cancel(f"{handle.name} was cancelled")
    finally:
        handle._ended.set()
        # The task has its context, and the context would have the task: garbage for the collector.
        handle.task = None
        waits_no_more()


@attrs.define(eq=False)
class Wait:
    """A wait of one task, as long as its block; `outer` is the wait it is nested in.

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
    """The innermost wait of `task`; None without a mark."""
    wait = task.context.get(_wait)
    if wait is None or wait.task is not task:
        return None  # inherited from the task that started this one
    return wait
