"""Service: a background task which the body of a block uses, and which therefore outlives it.

In a plain nursery a cancellation reaches all tasks at once, and a body that still has to send an
abort finds its sender gone. Here the body ends first and its services after. Where a whole nursery
needs a task and all may end side by side, `start_service` starts it there.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import attrs
import trio

from .background import (
    BackgroundTask,
    background_task_of,
    run_background_task,
    start_background_task,
)


@attrs.frozen
class ServiceEnded(Exception):
    """A service ended, or was cancelled through its handle, while others still needed it."""

    service: str

    def __str__(self) -> str:
        return f"{self.service} ended before those who use it"


@asynccontextmanager
async def open_service(
    async_fn: Callable[..., Awaitable[object]], *args: object, name: str, waits_for: str = ""
) -> AsyncIterator[BackgroundTask]:
    """Run `async_fn(*args, task_status=…)` as a background task for the body of the block.

    Entering waits until it has started. When the body is over, or cancelled from outside and
    unwound, the service is cancelled; the block is left when it has ended. Blocks nest: the
    outermost service ends last. `waits_for`: see `start_background_task`.

    *Raises* what the service raises, or `ServiceEnded`, after the body was cancelled with a reason;
    `CancelledBeforeStart` if there was none yet. What the body raises comes bare.

    *Cancellation* from outside does not reach a started service before its body is over, so a
    service must end soon after it is cancelled: its own cleanup must be bounded.
    """
    users = _Users()
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            service = await start_background_task(
                nursery, partial(_serve, async_fn, args, users), name=name, waits_for=waits_for
            )
            try:
                with users.scope:
                    yield service
            finally:
                users.done = True
                service.cancel("those who use it are done")
    if users.abandoned:
        raise ServiceEnded(name)


async def start_service(
    nursery: trio.Nursery,
    async_fn: Callable[..., Awaitable[object]],
    *args: object,
    name: str,
    waits_for: str = "",
) -> BackgroundTask:
    """`start_background_task` for a task that its whole `nursery` needs.

    Cancelled alone, through its handle, it ends the nursery with `ServiceEnded`: the others would
    go on without it, unnoticed. One that returns has nothing left to do.
    """
    handle = BackgroundTask(name, waits_for)

    async def run(*, task_status: trio.TaskStatus[Any]) -> None:
        await _run_needed(handle, partial(async_fn, task_status=task_status), args)

    handle.value = await nursery.start(run, name=name)
    return handle


def start_service_soon(
    nursery: trio.Nursery, async_fn: Callable[..., Awaitable[object]], *args: object, name: str
) -> BackgroundTask:
    """`start_service` without waiting; it has not run when this returns."""
    handle = BackgroundTask(name)
    nursery.start_soon(partial(_run_needed, handle, async_fn, args), name=name)
    return handle


async def _run_needed(
    handle: BackgroundTask, async_fn: Callable[..., Awaitable[object]], args: tuple[object, ...]
) -> None:
    await run_background_task(handle, async_fn, args)
    if handle.cancelled:
        raise ServiceEnded(handle.name)


@attrs.define(eq=False)
class _Users:
    # Around the body of the block.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    # The body is over: the service may end.
    done: bool = False
    # The service ended before `done`; the two are never both the first to come true.
    abandoned: bool = False


async def _serve(
    async_fn: Callable[..., Awaitable[object]],
    args: tuple[object, ...],
    users: _Users,
    *,
    task_status: trio.TaskStatus[Any],
) -> None:
    service = background_task_of(trio.lowlevel.current_task())
    assert service is not None
    try:
        await async_fn(*args, task_status=_ShieldingStatus(service, task_status))
    finally:
        if not users.done:
            users.abandoned = True
            users.scope.cancel(f"{service.name} has ended")


@attrs.define(eq=False)
class _ShieldingStatus(trio.TaskStatus[Any]):
    """Shields the service at the very moment in which it starts: before, it has no users."""

    service: BackgroundTask
    task_status: trio.TaskStatus[Any]

    def started(self, value: Any = None) -> None:
        # A start that is cancelled already leaves the task where it is, to be cancelled with it.
        start_cancelled = trio.current_effective_deadline() == -math.inf
        self.task_status.started(value)
        if not start_cancelled:
            self.service.shield()


@contextmanager
def single_errors_unwrapped() -> Iterator[None]:
    """Raise the only leaf of a group bare; leave groups of several, and bare errors, as they are.

    The error keeps its own cause, context and traceback: the groups around it add nothing.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        leaf = single_error(group)
        if leaf is group:
            raise
        cause, context, suppress = leaf.__cause__, leaf.__context__, leaf.__suppress_context__
        try:
            raise leaf
        finally:
            # `raise` has hung the group into the context of its own leaf; take it out again.
            leaf.__cause__, leaf.__context__ = cause, context
            leaf.__suppress_context__ = suppress
            del leaf, cause, context


def first_error(error: BaseException) -> BaseException:
    """The first leaf: where many failed alike, one says enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def single_error(error: BaseException) -> BaseException:
    """The innermost error as long as each group around it has one element; else what is left."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
