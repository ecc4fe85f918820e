"""The command line of `triolet`; each command imports what it needs when it runs.

Words to settings, errors to sentences, and nothing else.
"""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated

import attrs
import trio
from cyclopts import App, Parameter

from . import __version__
from .api.commands.options import ChatOptions, EngineOptions, FileOptions, ServeOptions
from .api.commands.plan import RareSettings, make_plan
from .api.commands.sources import Sources, check_written, environment, settings_file
from .bench.options import (
    BenchOptions,
    FloorOptions,
    LatencyOptions,
    PrefixOptions,
    StartupOptions,
    ThroughputOptions,
    TimelineOptions,
)
from .engine.errors import InvalidParameter
from .fuzz.chaos.options import ChaosOptions

HELP = """Serve a large language model; its token streams come back.

First steps: `triolet run` chats with the bundled model, `triolet serve` serves it to any OpenAI
client, `triolet serve FOLDER` serves yours. `triolet tree` shows a running server from inside.

Options may also stand in the environment (`--max-model-len 4096` is `TRIOLET_MAX_MODEL_LEN=4096`)
and in a file (`--config FILE`): the command line goes before the environment, that before the
file. `triolet config show` tells each value and where it comes from.
"""

BENCH_HELP = """Measure a server, an engine, this machine.

Without a sub-command: press a running server (`--url`), or one started for it, with one load, and
show rates, latencies and CPU a token of each process. MODEL may also be `tiny` or `small`: random
weights of the shapes that our figures are given for, written to your cache at the first use.

    triolet bench --requests 512 --in-flight 64             one load on the bundled model
    triolet bench throughput tiny --against transformers    offline, beside `generate`
    triolet bench latency small --concurrency 8 --rates 2   serving, by protocol and load
    triolet bench floor small --threads 2                   steps beside the machine's limits
    triolet bench timeline small --svg steps.svg            a step, part by part
    triolet bench prefix small                              prefix cache on and off
    triolet bench startup                                   to ready, and back after a kill
"""

sources = Sources()
app = App(
    name="triolet",
    version=__version__,
    help=HELP,
    config=[environment(), settings_file, check_written, sources],
)
app.register_install_completion_command(help="Install completion for this shell.")
config = App(name="config", help="Look at the settings.")
bench = App(name="bench", help=BENCH_HELP)
app.command(config)
app.command(bench)

Model = Annotated[
    str | None, Parameter(help="Model folder in Hugging Face format; without it the bundled one.")
]
BenchModel = Annotated[
    str | None, Parameter(help="Model folder, or `tiny` or `small`; without it the bundled one.")
]
# Each field of the class is an option of the command.
FLAT = Parameter(name="*")
# The same, but not in `--help`, which is for the first hour.
HIDDEN = Parameter(name="*", show=False)
SERVE, ENGINE, CHAT, BENCH = ServeOptions(), EngineOptions(), ChatOptions(), BenchOptions()
THROUGHPUT, LATENCY, STARTUP = ThroughputOptions(), LatencyOptions(), StartupOptions()
FLOOR, PREFIX, TIMELINE = FloorOptions(), PrefixOptions(), TimelineOptions()
CHAOS = ChaosOptions()
RARE, FILE = RareSettings(), FileOptions()


@app.command
def serve(
    model: Model = None,
    *,
    options: Annotated[ServeOptions, FLAT] = SERVE,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    rare: Annotated[RareSettings, HIDDEN] = RARE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Serve a model over HTTP and WebSocket: OpenAI's Responses, chat and completions.

    Ctrl-C serves out what is in flight, a second one aborts. Addresses that others can reach need
    an API key.
    """
    from .api.commands.exits import errors_as_sentences
    from .api.commands.report import make_server_report
    from .api.commands.serve import serve as run_server

    with errors_as_sentences():
        plan = make_plan(model, options, engine, rare)
        with make_server_report(options.log_format) as report:
            code = trio.run(run_server, plan, report)
    raise SystemExit(code)


@app.command
def run(
    model: Model = None,
    *,
    options: Annotated[ChatOptions, FLAT] = CHAT,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Chat with a model in the terminal, without a server."""
    from .api.commands.chat import chat
    from .api.commands.exits import errors_as_sentences
    from .api.commands.report import make_report

    with errors_as_sentences():
        trio.run(partial(chat, model, options, engine=attrs.asdict(engine), report=make_report()))


@app.command
def tree(
    run: Annotated[str | None, Parameter(help="Run id, or its beginning.")] = None,
    *,
    json: Annotated[bool, Parameter(help="JSON instead of lines.")] = False,
) -> None:
    """Show the live task tree of a running server, all processes merged."""
    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.tree import tree_text

    with errors_as_sentences():
        print_whole(trio.run(partial(tree_text, run, as_json=json)))


@bench.default
def bench_load(
    model: BenchModel = None,
    *,
    options: Annotated[BenchOptions, FLAT] = BENCH,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Press a running server, or one started for it, with one load."""
    from .bench.commands import load
    from .bench.load.runner import ServerGone

    _run_bench(load, model, options, engine, ServerGone)


@bench.command
def throughput(
    model: BenchModel = None,
    *,
    options: Annotated[ThroughputOptions, FLAT] = THROUGHPUT,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Answer work that lies ready: output tokens a second, and CPU a token of each process.

    With `--against transformers` its `generate` answers the same prompts in turns with ours.
    """
    from .bench.commands import throughput as run_throughput
    from .bench.serving.reference import ReferenceUnusable

    _run_bench(run_throughput, model, options, engine, ReferenceUnusable)


@bench.command
def timeline(
    model: BenchModel = None,
    *,
    options: Annotated[TimelineOptions, FLAT] = TIMELINE,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Show what engine and worker do in a step, and what hides behind what, as lines and picture.

    Both note the parts of their steps in a mapped file; nothing else is different from serving.
    """
    from .bench.commands import timeline as run_timeline
    from .bench.steps.timeline import TimelineEmpty

    _run_bench(run_timeline, model, options, engine, TimelineEmpty)


@bench.command
def latency(
    model: BenchModel = None,
    *,
    options: Annotated[LatencyOptions, FLAT] = LATENCY,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Press a server with one load after another: by protocol, concurrency, and arrivals a second.

    Shows tokens a second, time to the first token and between tokens, and CPU of each process.
    """
    from .bench.commands import latency as run_latency
    from .bench.load.runner import ServerGone

    _run_bench(run_latency, model, options, engine, ServerGone)


@bench.command
def startup(
    model: BenchModel = None,
    *,
    options: Annotated[StartupOptions, FLAT] = STARTUP,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Time `triolet serve`: from the command to ready, from its worker's death to ready again."""
    from .bench.commands import startup as run_startup
    from .fuzz.chaos.clients import Lost
    from .fuzz.observers import NotInTime

    _run_bench(run_startup, model, options, engine, Lost, NotInTime)


@bench.command
def prefix(
    model: BenchModel = None,
    *,
    options: Annotated[PrefixOptions, FLAT] = PREFIX,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Show what the prefix cache is worth to conversations that share a system prompt.

    Hit rate and time to the first token, with the cache and without, the same turns in turns.
    """
    from .bench.commands import prefix as run_prefix

    _run_bench(run_prefix, model, options, engine)


@bench.command
def floor(
    model: BenchModel = None,
    *,
    options: Annotated[FloorOptions, FLAT] = FLOOR,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Measure how fast this machine reads and multiplies, and how near steps come to it.

    Steps are computed in this process, without an engine around them; `--threads 0` takes every
    core. Of dense models.
    """
    from .bench.commands import floor as run_floor

    _run_bench(run_floor, model, options, engine)


@config.command
def show(
    model: Model = None,
    *,
    options: Annotated[ServeOptions, FLAT] = SERVE,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    rare: Annotated[RareSettings, HIDDEN] = RARE,
    file: Annotated[FileOptions, FLAT] = FILE,
    json: Annotated[bool, Parameter(help="JSON instead of a table.")] = False,
) -> None:
    """Show every setting of `serve` with its value and its source; takes the options of `serve`."""
    from .api.commands.config_show import settings_text
    from .api.commands.exits import print_whole

    print_whole(settings_text((options, engine, rare, file), model, sources, as_json=json))


@app.command
def doctor(*, json: Annotated[bool, Parameter(help="JSON instead of lines.")] = False) -> None:
    """Describe this machine and installation, for a report of a fault. Nothing secret is in it."""
    from .api.commands.doctor import findings_text
    from .api.commands.exits import print_whole

    text, is_sound = findings_text(as_json=json)
    print_whole(text)
    raise SystemExit(not is_sound)


@app.command
def chaos(*, options: Annotated[ChaosOptions, FLAT] = CHAOS) -> None:
    """Kill, stop, abort and disconnect over a real server; judge all of it from outside."""
    from .api.commands.exits import errors_as_sentences
    from .fuzz.chaos.campaign import chaos as run_chaos
    from .fuzz.chaos.clients import Lost
    from .fuzz.observers import NotInTime

    with errors_as_sentences(Lost, NotInTime):
        raise SystemExit(run_chaos(options))


def _run_bench(
    measure: Callable[..., Awaitable[None]],
    model: str | None,
    options: object,
    engine: EngineOptions,
    *errors: type[Exception],
) -> None:
    from .api.commands.exits import errors_as_sentences
    from .api.commands.report import make_report
    from .api.commands.termination import until_terminated

    with errors_as_sentences(*errors), make_report() as report:
        run = partial(measure, model, options, engine=attrs.asdict(engine), on_event=report)
        trio.run(until_terminated, run)


def run_words(words: list[str] | None) -> None:
    """Run the command that `words` (or the program's arguments) say."""
    try:
        app(words)
    except InvalidParameter as error:  # of an options class, before its command was called
        from .api.commands.exits import EXIT_USAGE, sentence

        print(f"triolet: {sentence(error)}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
