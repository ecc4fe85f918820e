"""Command `triolet bench`: presses a server with one load and shows the figures.

The server is one that runs, or one that is started for the load alone: it has this process for its
root, so that nothing outlives the command; its share of the client's row is some tasks that sleep.
Figures are a table for people or JSON for programs, with a progress bar while the load runs.
"""

import math
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...api.commands.figures import check_target, shows_table, write_figures
from ...api.commands.plan import fetch_plan, make_plan
from ...engine.errors import InvalidParameter
from ...nurseries.tasks.service import single_errors_unwrapped
from ...runtime.control.run_folder import live_runs
from ...runtime.events import OnEvent
from ...runtime.fleet.root import Root
from ..options import BenchOptions, LatencyOptions, Protocol
from .client import Target
from .measures import Measures, Spread, measure
from .protocols import LANES_MAX, HttpClient, LanesClient
from .runner import Runner
from .schedule import Load


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
        """Count more that have ended."""
        (task,) = self._progress.tasks
        done = task.completed + count
        # A hundred steps are enough to see, and cost nothing beside what is measured.
        step = math.floor(done * 100 / self.total) > math.floor(task.completed * 100 / self.total)
        self._progress.update(task.id, completed=done)
        if step and self.console.is_terminal:
            self._progress.refresh()


def print_table(console: Console, title: str, measures: Measures) -> None:
    """The figures for a person: rates and errors, latencies, what each process spent."""
    console.print(title, highlight=False)  # a table's own title wraps at the width of the table
    facts = Table(show_header=False)
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


# A load that is cut short when it is over has nothing in flight.
_GRACE_S = 0.0


@attrs.frozen
class PressedServer:
    """Server under load, and its root process; 0 if that is not on this machine."""

    target: Target
    pid: int


@asynccontextmanager
async def open_pressed_server(
    model: str | None,
    options: BenchOptions | LatencyOptions,
    *,
    engine: dict[str, Any],
    on_event: OnEvent,
) -> AsyncIterator[PressedServer]:
    """The server at the URL; without one a server of `model`, which ends with the block.

    Raises `InvalidParameter` and what the server's root raises.
    """
    if url := options.url:
        target = target_of(url, options.api_key)
        pids = [run.facts.pid for run in live_runs() if run.facts.url == url.rstrip("/")]
        yield PressedServer(target, pids[0] if pids else 0)
        return
    runtime = {
        "engine": engine,
        "engines": options.engines,
        "frontends": options.frontends,
        "times": {"grace_s": _GRACE_S},
    }
    settings = {"listen": {"port": 0}, "runtime": runtime}
    plan = await fetch_plan(make_plan(model, settings), model, settings, on_event)
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            address = await nursery.start(Root(plan, on_event).run, name="server")
            yield PressedServer(target_of(address, ""), os.getpid())
            nursery.cancel_scope.cancel("the load is over")


def target_of(url: str, key: str) -> Target:
    """Raises `InvalidParameter` for what is no plain `http://host:port`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise InvalidParameter("url", f"is wrong: {error}") from error
    if parts.scheme != "http" or not host or parts.path not in ("", "/"):
        raise InvalidParameter("url", f"must be http://host:port, not {url}")
    return Target(host=host, port=port, key=key)


# Prompts of the warm-up are others, so that none of those that count is in the prefix cache.
_WARM_UP_SEED = 1_000_003


async def bench(
    model: str | None, options: BenchOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """Run the load and show it. Raises what the server's root raises, and `ServerGone`."""
    check_target(options.json)
    load = Load(
        requests=options.requests,
        in_flight=options.in_flight,
        rate=options.rate,
        prompt_words=options.prompt_words,
        prompt_words_max=options.prompt_words_max,
        tokens=options.tokens,
        seed=options.seed,
        merge_ms=options.merge_ms,
    )
    async with open_pressed_server(model, options, engine=engine, on_event=on_event) as server:
        measures = await press(load, server, options.protocol, warm_up=options.warm_up)
    show(measures, load, options)


async def press(load: Load, server: PressedServer, protocol: Protocol, *, warm_up: int) -> Measures:
    """Warm up with so many requests, then run the load."""
    if warm_up > 0:
        warm = attrs.evolve(
            load,
            requests=warm_up,
            in_flight=min(load.in_flight, warm_up),
            rate=0.0,
            seed=load.seed + _WARM_UP_SEED,
        )
        await make_runner(warm, server.target, protocol).run()
    bar = Bar(Console(stderr=True), load.requests)
    with bar.shown():
        runner = make_runner(load, server.target, protocol, pid=server.pid)
        runner.on_ended = bar.advance
        return measure(await runner.run())


def make_runner(load: Load, target: Target, protocol: Protocol, *, pid: int = 0) -> Runner:
    """A run with as many connections as the load needs: a place for each request in flight."""
    places = min(load.in_flight, load.requests)
    if protocol is Protocol.LANES:
        sockets = -(-places // LANES_MAX)
        return Runner(load, target, lambda: LanesClient(target), sockets, server_pid=pid)
    return Runner(load, target, lambda: HttpClient(target, protocol), places, server_pid=pid)


def show(measures: Measures, load: Load, options: BenchOptions) -> None:
    """The table, unless stdout is for JSON; and the JSON, if it was asked for."""
    if shows_table(options.json):
        loop = f"{load.rate:g} arrivals/s" if load.rate else f"{load.in_flight} in flight"
        title = f"{options.protocol.value}: {load.requests} requests, {loop}, {load.tokens} tokens"
        print_table(Console(file=sys.stdout), title, measures)
    figures = {
        "command": "load",
        "protocol": options.protocol.value,
        "load": attrs.asdict(load),
        **attrs.asdict(measures),
    }
    write_figures(options.json, figures)
