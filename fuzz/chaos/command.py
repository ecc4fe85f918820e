"""The chaos command: a campaign, its report, and an exit code that says how it went."""

import json
import sys

import trio
from rich.console import Console

from .campaign import run_campaign
from .options import ChaosOptions
from .report import Report

EXIT_GREEN, EXIT_RED = 0, 1
# Of the table, where nobody looks at a terminal.
COLUMNS = 120


def chaos(options: ChaosOptions) -> int:
    """Run the campaign and print what it showed; the exit code."""
    report = trio.run(run_campaign, options)
    if options.json:
        show_json(report)
    else:
        show(report)
    return exit_code(report)


def exit_code(report: Report) -> int:
    """Of the command."""
    return EXIT_GREEN if report.is_green() else EXIT_RED


def show_json(report: Report) -> None:
    """All of it, for programs."""
    print(json.dumps(report.as_json(), indent=2))


def show(report: Report) -> None:
    """The table, and in sentences what it does not hold."""
    console = Console(width=None if sys.stdout.isatty() else COLUMNS)
    console.print(report.table())
    for sentence in report.sentences():
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
