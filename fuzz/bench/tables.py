"""Figures of the benchmarks as tables for people.

Sans-IO: figures in, tables out. Must not know how they were measured.
"""

from rich.table import Table

from .throughput import Throughput
from .timeline import StepFigures


def throughput_table(found: Throughput) -> Table:
    """Rates beside the yardstick's, and what each process spent."""
    work = found.work
    table = Table(
        title=f"{found.model}: {work.requests} requests at once, prompts {work.prompt_min} to"
        f" {work.prompt_max}, {work.tokens} tokens out",
        title_justify="left",
    )
    for head in ("", "output tokens/s", "CPU µs a token"):
        table.add_column(head)
    total = sum(series.median for series in found.cpu_us.values())
    table.add_row("triolet", found.tokens_s.text(), f"{total:.0f}")
    for name, series in found.cpu_us.items():
        table.add_row(f"  {name}", "", series.text())
    if found.reference:
        table.add_row(
            found.reference, found.reference_tokens_s.text(), found.reference_cpu_us.text()
        )
        table.add_row("ratio, run by run", found.ratio.text(2), "")
    return table


def timeline_table(figures: StepFigures) -> Table:
    """The parts of a step."""
    table = Table(title=f"median of {figures.steps} steps", title_justify="left")
    for head in ("part", "µs"):
        table.add_column(head, justify="right" if head == "µs" else "left")
    for name, us in figures.spans_us.items():
        table.add_row(name, f"{us:.1f}")
    return table
