"""Cancels a command on SIGTERM or SIGHUP, so that the servers it has started end with it."""

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ...nurseries.tasks.error_groups import single_errors_unwrapped

T = TypeVar("T")
# As shells say it of a program that SIGTERM ended.
EXIT_TERMINATED = 128 + signal.SIGTERM
# SIGHUP is a closed terminal's.
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)


async def until_terminated(main: Callable[[], Awaitable[T]]) -> T:
    """What `main` returns. A signal cancels it: its server must not outlive the command.

    Raises what `main` raises, or `SystemExit` when a signal came.
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
    with trio.open_signal_receiver(*TERMINATIONS) as signals:
        task_status.started()
        async for number in signals:
            scope.cancel(signal.Signals(number).name)
