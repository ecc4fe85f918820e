"""Shows the figures of a load: a table for people, JSON for programs, a bar while it runs.

Must not know how figures are made.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .measures import Measures, Spread


@attrs.define(eq=False)
class Bar:
    """How many requests have ended, drawn at most ten times a second."""

    console: Console
    total: int
    _progress: Progress = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            auto_refresh=False,  # rich would refresh from a thread of its own
        )

    @contextmanager
    def shown(self) -> Iterator["Bar"]:
        """Draw it in this block, on a terminal only."""
        self._progress.add_task("requests", total=self.total)
        if not self.console.is_terminal:
            yield self
            return
        with self._progress:
            yield self

    def advance(self, count: int) -> None:
        """So many more have ended."""
        (task,) = self._progress.tasks
        done = task.completed + count
        # A hundred steps are enough to see, and cost nothing beside what is measured.
        step = math.floor(done * 100 / self.total) > math.floor(task.completed * 100 / self.total)
        self._progress.update(task.id, completed=done)
        if step and self.console.is_terminal:
            self._progress.refresh()


def print_table(console: Console, title: str, measures: Measures) -> None:
    """The figures for a person: rates and errors, latencies, what each process spent."""
    facts = Table(title=title, show_header=False, title_justify="left")
    for name, value in _facts(measures):
        facts.add_row(name, value)
    console.print(facts)
    times = Table("ms", "mean", "p50", "p90", "p99", "max")
    for name, spread in (
        ("first output", measures.first_token_s),
        ("between outputs", measures.gap_s),
        ("whole request", measures.total_s),
        ("sent late", measures.late_s),
    ):
        times.add_row(name, *_milliseconds(spread))
    console.print(times)
    costs = Table("process", "CPU s", "CPU µs/token", "% of a core", "resident MiB")
    for row in measures.processes:
        memory = "" if math.isnan(row.resident_mib) else f"{row.resident_mib:.0f}"
        share = f"{row.cpu_s / measures.elapsed_s * 100:.0f}"
        costs.add_row(row.name, f"{row.cpu_s:.2f}", f"{row.cpu_us_per_token:.2f}", share, memory)
    console.print(costs)


def _facts(measures: Measures) -> list[tuple[str, str]]:
    facts = [
        ("requests", f"{measures.completed} of {measures.requests} completed"),
        ("requests/s", f"{measures.requests_per_s:.1f}"),
        ("tokens in, out", f"{measures.input_tokens}, {measures.output_tokens}"),
        ("tokens/s", f"{measures.tokens_per_s:.0f}"),
        ("tokens per event", f"{measures.tokens_per_delta:.2f}"),
        ("seconds", f"{measures.elapsed_s:.2f}"),
    ]
    return facts + [(f"error {kind}", str(count)) for kind, count in measures.errors.items()]


def _milliseconds(spread: Spread) -> list[str]:
    values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.largest)
    return ["" if math.isnan(value) else f"{value * 1e3:.2f}" for value in values]
