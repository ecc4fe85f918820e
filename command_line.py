"""Command line of `triolet`; each command imports what it needs when it runs."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import attrs
import trio
from cyclopts import App, Parameter

from . import __version__
from .api.commands.options import FLAT, ChatOptions, EngineOptions, FileOptions, ServeOptions
from .api.commands.plan import make_plan
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
client, `triolet serve FOLDER` serves yours. `triolet tree` shows a running server from inside,
`triolet restart` begins a part of it anew.

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
SERVE, ENGINE, CHAT = ServeOptions(), EngineOptions(), ChatOptions()
CHAOS, FILE = ChaosOptions(), FileOptions()


@app.command
def serve(
    model: Model = None,
    *,
    options: Annotated[Any, FLAT] = SERVE,
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
        plan = make_plan(model, attrs.asdict(options))
        with make_server_report(plan.settings.logs.format) as report:
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

    with errors_as_sentences():
        print_whole(trio.run(partial(tree_text, run, as_json=json)))


async def tree_text(run: str | None, *, as_json: bool) -> str:
    """The task tree of this run, or of the only one, asked over its control socket.

    Raises `RunNotFound`, `ControlCallFailed`.
    """
    import msgspec

    from .nurseries.tasks.task_tree import ProcessTree, render_tree
    from .runtime.messages import ControlCall
    from .runtime.processes.control_server import ask_run
    from .runtime.processes.run_folder import find_run

    text = await ask_run(find_run(run), ControlCall.TREE)
    if as_json:
        return text
    return "\n".join(render_tree(msgspec.json.decode(text, type=ProcessTree)))


@app.command
def restart(
    run: Annotated[str | None, Parameter(help="Run id, or its beginning.")] = None,
    *,
    engine: Annotated[int | None, Parameter(help="Rank of the engine that begins anew.")] = None,
    frontend: Annotated[int | None, Parameter(help="The same of a frontend.")] = None,
    rolling: Annotated[bool, Parameter(help="All of them, one after the other.")] = False,
) -> None:
    """Begin an engine or a frontend of a running server anew; without one, all that were given up.

    What runs there is stopped in order: a frontend serves out first, at most for the server's
    `--grace` (not at a second order); what an engine computes goes on elsewhere.

    With `--rolling` each engine and frontend begins anew when the one before is ready. Ctrl-C ends
    that behind the one under way, which comes back by itself.
    """
    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.rolling import NotBack, restart_rolling
    from .runtime.processes.control_server import ask_run
    from .runtime.processes.run_folder import find_run

    with errors_as_sentences(NotBack):
        if rolling:
            if engine is not None or frontend is not None:
                raise InvalidParameter("rolling", "is for all places: name no engine or frontend")
            trio.run(restart_rolling, partial(ask_run, find_run(run)), print_whole)
            return
        print_whole(trio.run(restart_text, run, engine, frontend))


async def restart_text(run: str | None, engine: int | None, frontend: int | None) -> str:
    """Restart as ordered, over the control socket; what was restarted, a line each.

    Raises `InvalidParameter`, `RunNotFound`, `ControlCallFailed`, `ControlCallRefused`.
    """
    import msgspec

    from .runtime.messages import ControlCall, Place, RestartedPlace, Role
    from .runtime.processes.control_server import ask_run
    from .runtime.processes.run_folder import find_run

    if engine is not None and frontend is not None:
        raise InvalidParameter("frontend", "and --engine exclude each other")
    place = None if engine is None else Place(Role.ENGINE, engine)
    place = place if frontend is None else Place(Role.FRONTEND, frontend)
    text = await ask_run(find_run(run), ControlCall.RESTART, place)
    restarted = msgspec.json.decode(text, type=dict[str, list[RestartedPlace]])["restarted"]
    return "\n".join(f"{each.place} was {each.was}, and begins anew" for each in restarted)


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
    file: Annotated[FileOptions, FLAT] = FILE,
    json: Annotated[bool, Parameter(help="JSON instead of a table.")] = False,
) -> None:
    """Show every setting of `serve` with its value and its source; takes the options of `serve`."""
    from .api.commands.config_show import settings_text
    from .api.commands.exits import print_whole

    print_whole(settings_text((options, file), model, sources.of_option, as_json=json))


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


def run_words(words: list[str] | None) -> None:
    """Run the command that `words` (or the program's arguments) say."""
    try:
        app(words)
    except InvalidParameter as error:  # of an options class, before its command was called
        from .api.commands.exits import EXIT_USAGE, sentence

        print(f"triolet: {sentence(error)}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
