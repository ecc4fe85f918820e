"""The sub-commands of `triolet bench`: measure, show a table, write JSON; each in one place.

Every JSON has the same frame: the command, the machine, then the figures. Must not know how
anything is measured.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

from ...runtime.events import OnEvent
from ..figures import check_target, shows_table, write_figures
from ..load.command import bench as run_load
from ..load.options import BenchOptions
from ..load.report import Bar
from .machine import Machine, look_at_machine
from .options import ThroughputOptions, TimelineOptions
from .shapes import model_or_shape
from .tables import throughput_table, timeline_table
from .throughput import measure_throughput
from .timeline_picture import picture, sentences, text_lanes
from .timeline_run import record_timeline, some_steps

# Of tables, where nobody looks at a terminal.
COLUMNS = 120


async def load(
    model: str | None, options: BenchOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """`triolet bench` itself: one load."""
    await run_load(model_or_shape(model), options, engine=engine, on_event=on_event)


async def throughput(
    model: str | None, options: ThroughputOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """`triolet bench throughput`."""
    check_target(options.json)
    machine = look_at_machine()
    runs = (options.repeats() + 1) * (2 if options.against else 1)
    bar = Bar(Console(stderr=True), runs * options.work().requests)
    with bar.shown():
        found = await measure_throughput(
            model_or_shape(model),
            options,
            engine=engine,
            on_event=on_event,
            on_ended=bar.advance,
        )
    show("throughput", machine, attrs.asdict(found), [throughput_table(found)], where=options.json)


async def timeline(
    model: str | None, options: TimelineOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """`triolet bench timeline`."""
    check_target(options.json)
    machine = look_at_machine()
    found = await record_timeline(model_or_shape(model), options, engine=engine, on_event=on_event)
    shown = some_steps(found, options.steps)
    title = f"{options.running} requests, steps {shown.first} to {shown.last}"
    write_text(options.svg, picture(shown, title))
    lines = [title, *text_lanes(shown), *sentences(found.figures)]
    figures = {**attrs.asdict(found.figures), "running": options.running}
    tables = [timeline_table(found.figures)]
    show("timeline", machine, figures, tables, lines=lines, where=options.json)


def write_text(where: str, text: str) -> None:
    """To a file; nothing happens for ""."""
    if where:
        pathlib.Path(where).write_text(text)


def show(
    command: str,
    machine: Machine,
    figures: Mapping[str, Any],
    tables: list[Table],
    *,
    where: str,
    lines: Sequence[str] = (),
) -> None:
    """Lines and tables, unless stdout is for JSON; and the JSON, if it was asked for."""
    if shows_table(where):
        console = Console(width=None if sys.stdout.isatty() else COLUMNS)
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        for table in tables:
            console.print(table)
        console.print(machine.describe(), markup=False, highlight=False, soft_wrap=True)
    write_figures(where, {"command": command, "machine": attrs.asdict(machine), **figures})
