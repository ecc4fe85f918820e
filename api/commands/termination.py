"""Ends a command in order when it is told to stop: the servers that it started go with it.

Must not know what the command does.
"""

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ...nurseries.tasks.error_groups import single_errors_unwrapped

T = TypeVar("T")
# As shells tell of a program that SIGTERM ended.
EXIT_TERMINATED = 128 + signal.SIGTERM


async def until_terminated(main: Callable[[], Awaitable[T]]) -> T:
    """What `main` returns. SIGTERM cancels it: its server must not outlive the command.

    Raises what `main` raises, or `SystemExit` when SIGTERM came.
    """
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            await nursery.start(_cancel_when_terminated, nursery.cancel_scope)
            value = await main()
            nursery.cancel_scope.cancel("the command is through")
            return value
    raise SystemExit(EXIT_TERMINATED)


async def _cancel_when_terminated(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel("SIGTERM")
