"""The chaos command: a campaign, its report, and an exit code that says how it went."""

import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio
from rich.console import Console

from ...nurseries.error_groups import single_errors_unwrapped
from ..figures import check_target, shows_table, write_figures
from .campaign import run_campaign
from .options import ChaosOptions
from .report import Report

T = TypeVar("T")
EXIT_GREEN, EXIT_RED = 0, 1
# As shells tell of a program that SIGTERM ended.
EXIT_TERMINATED = 128 + signal.SIGTERM
# Of the table, where nobody looks at a terminal.
COLUMNS = 120


def chaos(options: ChaosOptions) -> int:
    """Run the campaign and print what it showed; the exit code."""
    check_target(options.json)
    report = trio.run(until_terminated, partial(run_campaign, options))
    if shows_table(options.json):
        show(report)
    write_figures(options.json, {"command": "chaos", **report.as_json()})
    return exit_code(report)


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


def exit_code(report: Report) -> int:
    """Of the command."""
    return EXIT_GREEN if report.is_green() else EXIT_RED


def show(report: Report) -> None:
    """The table, and in sentences what it does not hold."""
    console = Console(width=None if sys.stdout.isatty() else COLUMNS)
    console.print(report.table())
    for sentence in report.sentences():
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
