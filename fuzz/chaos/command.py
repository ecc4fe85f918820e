"""The chaos command: a campaign, its report, and an exit code that says how it went."""

import sys
from functools import partial

import trio
from rich.console import Console

from ...api.commands.exits import until_terminated
from ...api.commands.figures import check_target, shows_table, write_figures
from .campaign import run_campaign
from .options import ChaosOptions
from .report import Report

EXIT_GREEN, EXIT_RED = 0, 1
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


def exit_code(report: Report) -> int:
    """Of the command."""
    return EXIT_GREEN if report.is_green() else EXIT_RED


def show(report: Report) -> None:
    """The table, and in sentences what it does not hold."""
    console = Console(width=None if sys.stdout.isatty() else COLUMNS)
    console.print(report.table())
    for sentence in report.sentences():
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
