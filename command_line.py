"""Command line of `triolet`; each command imports what it needs when it runs."""

import pathlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import attrs
import trio
from cyclopts import App, CycloptsError, Parameter

from . import __version__
from .api.commands.options import (
    FLAT,
    BatchOptions,
    ChatOptions,
    EngineOptions,
    FileOptions,
    KeyFileOptions,
    Model,
    ServeOptions,
)
from .api.commands.plan import fetch_plan, make_plan, with_file_keys
from .api.commands.sources import (
    Sources,
    check_written,
    environment,
    parser_sentence,
    settings_file,
)
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
client, `triolet serve FOLDER` serves yours. `triolet tree` shows a running server from inside,
`triolet top` as it changes, `triolet restart` restarts a part of it.

Options may also be set in the environment (`--max-model-len 4096` is `TRIOLET_MAX_MODEL_LEN=4096`)
and in a file (`--config FILE`). The command line takes precedence over the environment, and that
over the file. `triolet config show` lists each value and its source.
"""

MORE = "`triolet config show` lists every setting, rarer ones too.\n"
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
    # Of an option that is given twice the last one counts, as scripts that append expect.
    default_parameter=Parameter(allow_repeating=True),
)
app.register_install_completion_command(help="Install completion for this shell.")
config = App(name="config", help="Look at the settings.")
bench = App(name="bench", help=BENCH_HELP)
app.command(config)
app.command(bench)

BenchModel = Annotated[
    str | None, Parameter(help="Model folder, or `tiny` or `small`; without it the bundled one.")
]
SERVE, ENGINE, CHAT, BATCH = ServeOptions(), EngineOptions(), ChatOptions(), BatchOptions()
CHAOS, FILE, KEYS = ChaosOptions(), FileOptions(), KeyFileOptions()


@app.command(help_epilogue=MORE)
def serve(
    model: Model = None,
    *,
    options: Annotated[Any, FLAT] = SERVE,
    keys: Annotated[KeyFileOptions, FLAT] = KEYS,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Serve a model over HTTP and WebSocket: OpenAI's Responses, chat and completions, and
    Anthropic's Messages.

    Press Ctrl-C once to finish running requests and exit, twice to abort them. Addresses that
    others can reach need an API key.
    """
    from .api.commands.exits import errors_as_sentences
    from .api.commands.report import FirstSteps, make_server_report
    from .api.commands.serve import serve as run_server

    with errors_as_sentences():
        tree = with_file_keys(attrs.asdict(options), **attrs.asdict(keys))
        plan = make_plan(model, tree)
        steps = FirstSteps(plan.settings.model_name, needs_key=bool(tree["serve"]["api_keys"]))
        with make_server_report(plan.settings.logs.format, steps) as report:
            plan = trio.run(fetch_plan, plan, model, tree, report)
            code = trio.run(run_server, plan, report, sources.unknown)
    raise SystemExit(code)


@app.command(help_epilogue=MORE)
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


@app.command(help_epilogue=MORE)
def batch(
    input: Annotated[pathlib.Path, Parameter(help="Requests, in OpenAI's format.")],
    output: Annotated[pathlib.Path, Parameter(help="Answers; what is there goes on.")],
    model: Model = None,
    /,
    *,
    options: Annotated[BatchOptions, FLAT] = BATCH,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """Answer a file of requests (JSON lines in OpenAI's batch format) into another one.

    Started again after any end, it asks only for what has no answer yet.
    """
    from .api.commands.batch import BatchGivenUp, run_batch
    from .api.commands.batch_file import BatchFileError
    from .api.commands.exits import errors_as_sentences, print_whole, until_terminated
    from .api.commands.report import make_report

    with errors_as_sentences(BatchFileError, BatchGivenUp), make_report() as report:
        files, settings = (input, output), attrs.asdict(engine)
        run = partial(run_batch, files, model, options, engine=settings, on_event=report)
        print_whole(trio.run(until_terminated, run))


@app.command
def tree(
    run: Annotated[str | None, Parameter(help="Run id, or its beginning.")] = None,
    *,
    json: Annotated[bool, Parameter(help="JSON instead of lines.")] = False,
) -> None:
    """Show the live task tree of a running server, all processes merged."""
    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.running import tree_text

    with errors_as_sentences():
        print_whole(trio.run(partial(tree_text, run, as_json=json)))


@app.command
def top(run: Annotated[str | None, Parameter(help="Run id, or its beginning.")] = None) -> None:
    """Watch the processes of a running server: what they do, CPU, memory, deaths as they happen.

    Keys: arrows choose a process, `k` kills it when you confirm it, `s` stops it, `c` continues it,
    `o` orders by CPU or memory, `q` quits. Where the output is no terminal it is printed once.
    """
    from .api.commands.exits import errors_as_sentences
    from .api.commands.top import show_top
    from .runtime.processes.run_folder import find_run

    with errors_as_sentences():
        trio.run(show_top, find_run(run))


@app.command
def restart(
    run: Annotated[str | None, Parameter(help="Run id, or its beginning.")] = None,
    *,
    engine: Annotated[int | None, Parameter(help="Rank of the engine to restart.")] = None,
    frontend: Annotated[int | None, Parameter(help="The same of a frontend.")] = None,
    rolling: Annotated[bool, Parameter(help="All of them, one after the other.")] = False,
) -> None:
    """Restart an engine or a frontend of a running server; without one, all that were given up.

    A frontend hands its connections and requests to its next life; with `--no-takeover` it finishes
    its requests first, for the server's `--grace` at most (not at a second order), and its next
    life goes on with the rest. An engine ends in order, and what it computes goes on elsewhere.

    With `--rolling` each engine and frontend is restarted when the one before is ready. Ctrl-C ends
    that behind the one under way, which comes back by itself.
    """
    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.running import NotBack, restart_rolling, restart_text
    from .runtime.processes.control_server import ask_run
    from .runtime.processes.run_folder import find_run

    with errors_as_sentences(NotBack):
        if rolling:
            if engine is not None or frontend is not None:
                raise InvalidParameter("rolling", "is for all places: name no engine or frontend")
            trio.run(restart_rolling, partial(ask_run, find_run(run)), print_whole)
            return
        print_whole(trio.run(restart_text, run, engine, frontend))


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
            from .api.commands.exits import errors_as_sentences, until_terminated
            from .api.commands.report import make_report

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
    """Press a running server, or one started for it, with one load."""
    from .bench.commands import load
    from .bench.load.runner import ServerGone

    return load, (ServerGone,)


@bench_command(ThroughputOptions(), "throughput")
def _throughput() -> Measurement:
    """Answer work that lies ready: output tokens a second, and CPU a token of each process.

    With `--against transformers` its `generate` answers the same prompts in turns with ours.
    """
    from .bench.commands import throughput
    from .bench.serving.reference import ReferenceUnusable

    return throughput, (ReferenceUnusable,)


@bench_command(TimelineOptions(), "timeline")
def _timeline() -> Measurement:
    """Show what engine and worker do in a step, and what hides behind what, as lines and picture.

    Both note the parts of their steps in a mapped file; nothing else is different from serving.
    """
    from .bench.commands import timeline
    from .bench.steps.timeline import TimelineEmpty

    return timeline, (TimelineEmpty,)


@bench_command(LatencyOptions(), "latency")
def _latency() -> Measurement:
    """Press a server with one load after another: by protocol, concurrency, and arrivals a second.

    Shows tokens a second, time to the first token and between tokens, and CPU of each process.
    """
    from .bench.commands import latency
    from .bench.load.runner import ServerGone

    return latency, (ServerGone,)


@bench_command(StartupOptions(), "startup")
def _startup() -> Measurement:
    """Time `triolet serve`: from the command to ready, from its worker's death to ready again."""
    from .bench.commands import startup
    from .fuzz.chaos.clients import Lost
    from .fuzz.observers import NotInTime

    return startup, (Lost, NotInTime)


@bench_command(PrefixOptions(), "prefix")
def _prefix() -> Measurement:
    """Show what the prefix cache is worth to conversations that share a system prompt.

    Hit rate and time to the first token, with the cache and without, the same turns in turns.
    """
    from .bench.commands import prefix

    return prefix, ()


@bench_command(FloorOptions(), "floor")
def _floor() -> Measurement:
    """Measure how fast this machine reads and multiplies, and how near steps come to it.

    Steps are computed in this process, without an engine around them; `--threads 0` takes every
    core. Of dense models.
    """
    from .bench.commands import floor

    return floor, ()


@config.command
def show(
    model: Model = None,
    *,
    options: Annotated[Any, FLAT] = SERVE,
    keys: Annotated[KeyFileOptions, FLAT] = KEYS,
    file: Annotated[FileOptions, FLAT] = FILE,
    json: Annotated[bool, Parameter(help="JSON instead of a table.")] = False,
) -> None:
    """Show every setting of `serve` with its value and its source; takes the options of `serve`."""
    from .api.commands.config_show import settings_text
    from .api.commands.exits import print_whole

    print_whole(settings_text((options, keys, file), model, sources.of_option, as_json=json))


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
    from .fuzz.chaos.clients import Lost
    from .fuzz.chaos.command import chaos as run_chaos
    from .fuzz.observers import NotInTime

    with errors_as_sentences(Lost, NotInTime):
        raise SystemExit(run_chaos(options))


def run_words(words: list[str] | None) -> None:
    """Run the command that `words` (or the program's arguments) say."""
    try:
        app(words, exit_on_error=False, print_error=False)
    except (CycloptsError, InvalidParameter) as error:  # the latter of an options class
        from .api.commands.exits import EXIT_USAGE, sentence

        text = parser_sentence(error) if isinstance(error, CycloptsError) else sentence(error)
        print(f"triolet: {text}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
