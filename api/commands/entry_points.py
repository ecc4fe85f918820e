"""Commands that take settings (`serve`, `run`, `batch`, `config show`): from options to a call.

The options are classes whose making takes a third of a second, so `command_line` imports this
module when one of these commands is asked for, and each command what it needs when it runs.
"""

import pathlib
import sys
from functools import partial
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from ...nurseries.processes.heap import pause_collector, settle_modules
from .options import (
    FLAT,
    BatchOptions,
    ChatOptions,
    DoorOptions,
    EngineOptions,
    FileOptions,
    HelpAll,
    HostOptions,
    KeyFileOptions,
    Model,
    ServeOptions,
)
from .sources import SOURCES

SERVE, ENGINE, CHAT, BATCH = ServeOptions(), EngineOptions(), ChatOptions(), BatchOptions()
FILE, KEYS, HOST, DOOR = FileOptions(), KeyFileOptions(), HostOptions(), DoorOptions()


def serve(
    model: Model = None,
    *,
    options: Annotated[Any, FLAT] = SERVE,
    keys: Annotated[KeyFileOptions, FLAT] = KEYS,
    file: Annotated[FileOptions, FLAT] = FILE,
    help_all: HelpAll = False,
) -> None:
    """`triolet serve`."""
    pause_collector()
    import trio

    from .exits import errors_as_sentences, print_whole
    from .plan import fetch_plan, make_plan, with_demo, with_file_keys
    from .report import FirstSteps, is_watched, make_server_report
    from .serve import serve as run_server

    settle_modules()
    if help_all:
        from .config_show import help_text

        print_whole(help_text((SERVE, KEYS, FILE)))
        return
    with errors_as_sentences():
        tree = with_file_keys(attrs.asdict(options), **attrs.asdict(keys))
        tree = with_demo(tree, is_terminal=is_watched(tree["runtime"]["logs"]["format"]))
        plan = make_plan(model, tree)
        needs_key = bool(tree["serve"]["api_keys"])
        steps = FirstSteps(plan.settings.model_name, needs_key, plan.demo_key)
        with make_server_report(plan.settings.logs.format, steps) as report:
            plan = trio.run(fetch_plan, plan, model, tree, report)
            code = trio.run(run_server, plan, report, SOURCES.unknown)
    raise SystemExit(code)


def engine(
    model: Model = None,
    *,
    options: Annotated[HostOptions, FLAT] = HOST,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """`triolet engine`."""
    pause_collector()
    import trio

    from ...nurseries.logs import LogSettings
    from .exits import errors_as_sentences
    from .host import serve_as_host
    from .host_plans import STDIN, make_host_plan
    from .report import make_report

    settle_modules()
    with errors_as_sentences():
        plan = make_host_plan(model, **attrs.asdict(options))
        with make_report() as report:
            run_host = partial(serve_as_host, is_launched=options.key == STDIN)
            code = trio.run(run_host, plan, report, LogSettings())
    raise SystemExit(code)


def run(
    model: Model = None,
    *,
    options: Annotated[ChatOptions, FLAT] = CHAT,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """`triolet run`."""
    import trio

    from .chat import chat
    from .exits import errors_as_sentences
    from .report import make_report

    with errors_as_sentences():
        trio.run(partial(chat, model, options, engine=attrs.asdict(engine), report=make_report()))


def batch(
    input: Annotated[
        pathlib.Path, Parameter(help="Input file: requests in OpenAI's batch format.")
    ],
    output: Annotated[pathlib.Path, Parameter(help="Output file; an existing one is resumed.")],
    model: Model = None,
    /,
    *,
    options: Annotated[BatchOptions, FLAT] = BATCH,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
    hosts: Annotated[DoorOptions, FLAT] = DOOR,
    file: Annotated[FileOptions, FLAT] = FILE,
) -> None:
    """`triolet batch`."""
    import trio

    from .batch import BatchGivenUp, run_batch
    from .batch_file import BatchFileError
    from .exits import errors_as_sentences, print_whole, until_terminated
    from .report import make_report

    with errors_as_sentences(BatchFileError, BatchGivenUp), make_report() as report:
        files = input, output
        runtime = {"engine": attrs.asdict(engine), "hosts": attrs.asdict(hosts)}
        run = partial(run_batch, files, model, options, runtime=runtime, on_event=report)
        print_whole(trio.run(until_terminated, run))


def show(
    model: Model = None,
    *,
    options: Annotated[Any, FLAT] = SERVE,
    keys: Annotated[KeyFileOptions, FLAT] = KEYS,
    file: Annotated[FileOptions, FLAT] = FILE,
    json: Annotated[bool, Parameter(help="JSON instead of a table.")] = False,
) -> None:
    """`triolet config show`."""
    from .config_show import settings_text
    from .exits import print_whole

    for each in SOURCES.unknown:
        print(f"triolet: warning: {each}", file=sys.stderr)
    print_whole(settings_text((options, keys, file), model, SOURCES.of_option, as_json=json))
