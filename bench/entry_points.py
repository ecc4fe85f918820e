"""Commands `triolet bench …`: from options to a measurement."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import attrs
import trio
from cyclopts import App, Parameter

from ..api.commands.options import FLAT, EngineOptions, FileOptions
from .options import (
    BenchOptions,
    FloorOptions,
    LatencyOptions,
    PrefixOptions,
    StartupOptions,
    ThroughputOptions,
    TimelineOptions,
)

bench = App(name="bench")

BenchModel = Annotated[
    str | None, Parameter(help="Model folder, or `tiny` or `small`; without it the bundled one.")
]
ENGINE, FILE = EngineOptions(), FileOptions()

# The measuring function of a sub-command of bench and the errors it expects.
Measurement = tuple[Callable[..., Awaitable[None]], tuple[type[Exception], ...]]


def bench_command(defaults: object, name: str = "") -> Callable[[Callable[[], Measurement]], None]:
    """Adds a sub-command with these options; without a name it is `triolet bench` itself."""

    def add(load: Callable[[], Measurement]) -> None:
        def run_bench(
            model: BenchModel = None,
            *,
            options: Annotated[Any, FLAT] = defaults,
            engine: Annotated[EngineOptions, FLAT] = ENGINE,
            file: Annotated[FileOptions, FLAT] = FILE,
        ) -> None:
            from ..api.commands.exits import errors_as_sentences, until_terminated
            from ..api.commands.report import make_report

            measure, errors = load()
            with errors_as_sentences(*errors), make_report() as report:
                run = partial(measure, model, options, engine=attrs.asdict(engine), on_event=report)
                trio.run(until_terminated, run)

        run_bench.__doc__ = load.__doc__
        if name:
            bench.command(run_bench, name=name)
        else:
            bench.default(run_bench)

    return add


@bench_command(BenchOptions())
def _load() -> Measurement:
    """Load-test a running server, or one started for it."""
    from .commands import load
    from .load.runner import ServerGone

    return load, (ServerGone,)


@bench_command(ThroughputOptions(), "throughput")
def _throughput() -> Measurement:
    """Answer work that lies ready: output tokens a second, and CPU a token of each process.

    With `--against transformers` its `generate` answers the same prompts in turns with ours.
    """
    from .commands import throughput
    from .serving.reference import ReferenceUnusable

    return throughput, (ReferenceUnusable,)


@bench_command(TimelineOptions(), "timeline")
def _timeline() -> Measurement:
    """Show what engine and worker do in a step, and what hides behind what, as lines and picture.

    Both note the parts of their steps in a mapped file; nothing else is different from serving.
    """
    from .commands import timeline
    from .steps.timeline import TimelineEmpty

    return timeline, (TimelineEmpty,)


@bench_command(LatencyOptions(), "latency")
def _latency() -> Measurement:
    """Load-test a server, one load after another: by protocol, concurrency, and arrivals a second.

    Shows tokens a second, time to the first token and between tokens, and CPU of each process.
    """
    from .commands import latency
    from .load.runner import ServerGone

    return latency, (ServerGone,)


@bench_command(StartupOptions(), "startup")
def _startup() -> Measurement:
    """Time `triolet serve`: from the command to ready, from deaths to ready again; and idle CPU."""
    from ..fuzz.chaos.clients import Lost
    from ..fuzz.observers import NotInTime
    from .commands import startup

    return startup, (Lost, NotInTime)


@bench_command(PrefixOptions(), "prefix")
def _prefix() -> Measurement:
    """Show what the prefix cache is worth to conversations that share a system prompt.

    Hit rate and time to the first token, with the cache and without, the same turns in turns.
    """
    from .commands import prefix

    return prefix, ()


@bench_command(FloorOptions(), "floor")
def _floor() -> Measurement:
    """Measure how fast this machine reads and multiplies, and how near steps come to it.

    Steps are computed in this process, without an engine around them; `--threads 0` takes every
    core. Of dense models.
    """
    from .commands import floor

    return floor, ()
