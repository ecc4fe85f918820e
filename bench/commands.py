"""The sub-commands of `triolet bench`: measure, show a table, write JSON; each in one place.

Every JSON has the same frame: the command, the machine, then the figures.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import trio
from rich.console import Console
from rich.table import Table

from ..api.commands.config_show import rows_of
from ..api.commands.figures import check_target, shows_table, write_figures
from ..api.commands.options import EngineOptions
from ..engine.model.bundled import bundled_model_folder
from ..runtime.events import OnEvent
from .load.command import Bar
from .load.command import bench as run_load
from .options import (
    BenchOptions,
    FloorOptions,
    LatencyOptions,
    PrefixOptions,
    StartupOptions,
    ThroughputOptions,
    TimelineOptions,
)
from .serving.latency import measure_latency
from .serving.prefix import measure_prefix
from .serving.startup import measure_startup
from .serving.throughput import measure_throughput
from .steps.kernels import measure_kernels, usual_cases
from .steps.machine import Machine, look_at_machine
from .steps.shapes import model_or_shape
from .steps.timeline import record_timeline, some_steps
from .steps.timeline_picture import picture, sentences, text_lanes
from .tables import (
    kernel_table,
    latency_table,
    machine_table,
    prefix_table,
    startup_table,
    throughput_table,
    timeline_table,
)

_DEFAULTS = tuple(rows_of(EngineOptions(), {}))
# Width of tables that no terminal shows.
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


async def latency(
    model: str | None, options: LatencyOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """`triolet bench latency`."""
    check_target(options.json)
    machine = look_at_machine()
    rows = await measure_latency(model_or_shape(model), options, engine=engine, on_event=on_event)
    name = model or options.url or "bundled model"
    figures = {
        "rows": [
            {"protocol": row.protocol.value, "load": attrs.asdict(row.load)}
            | attrs.asdict(row.measures)
            for row in rows
        ]
    }
    show("latency", machine, figures, [latency_table(name, rows)], where=options.json)


async def startup(
    model: str | None, options: StartupOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """`triolet bench startup`."""
    check_target(options.json)
    machine = look_at_machine()
    words = words_of_serve(EngineOptions(**engine))
    bar = Bar(Console(stderr=True), options.repeats())
    with bar.shown():
        found = await measure_startup(
            model_or_shape(model), options, words=words, on_ended=bar.advance
        )
    show("startup", machine, attrs.asdict(found), [startup_table(found)], where=options.json)


async def prefix(
    model: str | None, options: PrefixOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """`triolet bench prefix`."""
    check_target(options.json)
    machine = look_at_machine()
    turns = 2 * options.conversations * (options.turns_each() + 1)
    bar = Bar(Console(stderr=True), turns)
    with bar.shown():
        rows = await measure_prefix(
            model_or_shape(model),
            options,
            engine=engine,
            on_event=on_event,
            on_ended=bar.advance,
        )
    figures = {"rows": [{"hit_rate": row.hit_rate} | attrs.asdict(row) for row in rows]}
    show("prefix", machine, figures, [prefix_table(rows)], where=options.json)


async def floor(
    model: str | None, options: FloorOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """`triolet bench floor`."""
    check_target(options.json)
    machine = look_at_machine()
    folder = model_or_shape(model) or str(bundled_model_folder())
    cases = usual_cases(
        options.batch, context=options.context, prefill=options.prefill, mixed=options.mixed
    )
    bar = Bar(Console(stderr=True), len(cases) * (options.repeats() + 1))
    with bar.shown():
        measure = partial(
            measure_kernels,
            folder,
            cases,
            engine=engine,
            rounds=options.repeats(),
            on_ended=bar.advance,
        )
        found = await trio.to_thread.run_sync(measure)
    tables = [machine_table(found.machine_floors), kernel_table(found)]
    show("floor", machine, attrs.asdict(found), tables, where=options.json)


def words_of_serve(engine: Any) -> list[str]:
    """The options of `triolet serve` that say the same, those that are not the default."""
    words: list[str] = []
    for each, default in zip(rows_of(engine, {}), _DEFAULTS, strict=True):
        if each.value == default.value:
            continue
        if isinstance(each.value, bool):
            words.append(each.option if each.value else f"--no-{each.option.removeprefix('--')}")
        else:
            words += [each.option, str(each.value)]
    return words


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
