"""The command line: `triolet serve | run | tree | bench`; a command imports its needs when it runs.

Words to settings, errors to sentences, and nothing else. Must not know how anything is done.
"""

from functools import partial
from typing import Annotated

import attrs
import trio
from cyclopts import App, Parameter

from . import __version__
from .api.commands.options import ChatOptions, EngineOptions, ServeOptions
from .fuzz.load.options import BenchOptions

app = App(
    name="triolet",
    version=__version__,
    help="Serve a large language model; its token streams come back.",
)

Model = Annotated[
    str | None, Parameter(help="Model folder in Hugging Face format; without it the bundled one.")
]
# Each field of the class is an option of the command.
FLAT = Parameter(name="*")
SERVE, ENGINE, CHAT, BENCH = ServeOptions(), EngineOptions(), ChatOptions(), BenchOptions()


@app.command
def serve(
    model: Model = None,
    *,
    options: Annotated[ServeOptions, FLAT] = SERVE,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
) -> None:
    """Serve a model over HTTP and WebSocket (OpenAI's Responses and chat completions)."""
    from .api.commands.exits import errors_as_sentences
    from .api.commands.plan import make_plan
    from .api.commands.report import make_report
    from .api.commands.serve import serve as run_server
    from .runtime.config import SupervisionSettings

    with errors_as_sentences():
        plan = make_plan(
            model,
            engine=attrs.asdict(engine),
            engines=options.engines,
            frontends=options.frontends,
            model_name=options.model_name,
            host=options.host,
            port=options.port,
            api_keys=options.api_key,
            allowed_hosts=options.allowed_host,
            allowed_origins=options.allowed_origin,
            grace_s=options.grace,
            supervision=SupervisionSettings(
                restart_limit=options.restart_limit, restart_period_s=options.restart_period
            ),
        )
        with make_report() as report:
            code = trio.run(run_server, plan, report)
    raise SystemExit(code)


@app.command
def run(
    model: Model = None,
    *,
    options: Annotated[ChatOptions, FLAT] = CHAT,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
) -> None:
    """Chat with a model in the terminal."""
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
    from .api.commands.exits import errors_as_sentences
    from .api.commands.tree import tree_text

    with errors_as_sentences():
        print(trio.run(partial(tree_text, run, as_json=json)))


@app.command
def bench(
    model: Model = None,
    *,
    options: Annotated[BenchOptions, FLAT] = BENCH,
    engine: Annotated[EngineOptions, FLAT] = ENGINE,
) -> None:
    """Press a running server, or one started for it, and show rates, latencies and CPU a token."""
    from .api.commands.exits import errors_as_sentences
    from .api.commands.report import make_report
    from .fuzz.load.command import bench as run_bench
    from .fuzz.load.runner import ServerGone

    with errors_as_sentences(ServerGone), make_report() as report:
        trio.run(partial(run_bench, model, options, engine=attrs.asdict(engine), on_event=report))


def main() -> None:
    """Entry point of the `triolet` program."""
    app()


if __name__ == "__main__":
    main()
