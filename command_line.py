"""Command line of `triolet`: what its words name is imported when they name it.

The classes of options take longer to make than a tree or a version to print, so the commands that
have them live in `entry_points` modules, which the parser imports by name.
"""

import pathlib
import sys
from functools import partial
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from . import __version__
from .api.commands.peer_options import our_words
from .api.commands.sources import (
    EVERY_OPTION,
    SOURCES,
    check_written,
    environment,
    parser_sentence,
    settings_file,
)
from .engine.errors import InvalidParameter

HELP = """Serve a large language model; its token streams come back.

First steps: `triolet run` chats with the bundled model, `triolet serve` serves it to any OpenAI
client, `triolet serve FOLDER` serves yours. `triolet tree` shows a running server from inside,
`triolet top` as it changes, `triolet restart` restarts a part of it.

Options may also be set in the environment (`--max-model-len 4096` is `TRIOLET_MAX_MODEL_LEN=4096`)
and in a file (`--config FILE`). The command line takes precedence over the environment, and that
over the file. `triolet config show` lists each value and its source.
"""

MORE = "`triolet serve --help-all` and `triolet config show` list every setting.\n"
SERVE_MORE = f"""Press Ctrl-C once to finish running requests and exit, twice to abort them.
Addresses that others can reach need an API key.

{MORE}"""
BENCH_HELP = """Measure a server, an engine, this machine.

Without a sub-command: load-test a running server (`--url`), or one started for it, and show
throughput, latency and CPU per token of each process. MODEL may also be `tiny` or `small`: random
weights of the shapes that our figures are given for, written to your cache at the first use.

    triolet bench --requests 512 --in-flight 64            one load
    triolet bench throughput tiny --against transformers   beside `generate`
    triolet bench latency small --concurrency 8 --rates 2  by protocol and load
    triolet bench floor small --threads 2                  the machine's limits
    triolet bench timeline small --svg steps.svg           a step, part by part
    triolet bench prefix small                             prefix cache on, off
    triolet bench startup                                  to ready, after a kill
"""

app = App(
    name="triolet",
    version=__version__,
    help=HELP,
    config=[environment(), settings_file, check_written, SOURCES],
    default_parameter=EVERY_OPTION,
)
app.register_install_completion_command(help="Install completion for this shell.")
config = App(name="config", help="Look at the settings.")
app.command(config)
# Modules of commands that have settings, by name: importing them is what costs.
SETTINGS = "triolet.api.commands.entry_points"
BENCH = "triolet.bench.entry_points"
CHAOS = "triolet.fuzz.chaos.command"
app.command(
    f"{SETTINGS}:serve",
    help="Serve a model over HTTP and WebSocket: OpenAI's Responses, chat and completions, and"
    " Anthropic's Messages.",
    help_epilogue=SERVE_MORE,
)
app.command(
    f"{SETTINGS}:engine",
    help="Serve engines of this machine under a head on another one, which was started with"
    " `--join-port`. SIGTERM drains them first.",
    help_epilogue=MORE,
)
app.command(
    f"{SETTINGS}:run",
    help="Chat with a model in the terminal, without a server.",
    help_epilogue=MORE,
)
app.command(
    f"{SETTINGS}:batch",
    help="Answer the requests of a file (JSON lines in OpenAI's batch format) and write the answers"
    " to another file. An interrupted run is resumed when it is started again.",
    help_epilogue=MORE,
)
config.command(
    f"{SETTINGS}:show",
    help="Show every setting of `serve` with its value and its source; takes the options of"
    " `serve`.",
)
app.command(f"{BENCH}:bench", name="bench", help=BENCH_HELP)
app.command(
    f"{CHAOS}:chaos",
    help="Start a server, kill and stop its processes under load, and check every client's stream.",
)


RunName = Annotated[str | None, Parameter(help="Port, address, or id of the server.")]


@app.command
def tree(
    run: RunName = None,
    *,
    json: Annotated[bool, Parameter(help="JSON instead of lines.")] = False,
) -> None:
    """Show the live task tree of a running server, all processes merged."""
    import trio

    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.running import tree_text

    with errors_as_sentences():
        print_whole(trio.run(partial(tree_text, run, as_json=json)))


@app.command
def top(run: RunName = None) -> None:
    """Watch the processes of a running server: what they do, CPU, memory, deaths as they happen.

    Keys: arrows choose a process, `k` kills it when you confirm it, `s` stops it, `c` continues it,
    `o` orders by CPU or memory, `q` quits. When stdout is not a terminal, it prints once.
    """
    import trio

    from .api.commands.exits import errors_as_sentences
    from .api.commands.top import show_top
    from .runtime.control.run_folder import find_run

    with errors_as_sentences():
        trio.run(show_top, find_run(run))


@app.command
def restart(
    run: RunName = None,
    *,
    engine: Annotated[int | None, Parameter(help="Rank of the engine to restart.")] = None,
    frontend: Annotated[int | None, Parameter(help="Rank of the frontend to restart.")] = None,
    rolling: Annotated[
        bool, Parameter(help="Restart every engine and frontend, one after the other.")
    ] = False,
) -> None:
    """Restart an engine or a frontend of a running server; without either, all that died too often.

    A frontend hands its connections and requests to its successor. Under `--no-takeover` it first
    finishes its requests, for at most `--grace` seconds or until it is ordered again, and its
    successor continues the rest. An engine's requests continue on another engine.

    With `--rolling`, engines and frontends are restarted one after the other, each when the one
    before is ready. Ctrl-C stops before the next one.
    """
    import trio

    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.running import NotBack, restart_rolling, restart_text
    from .runtime.control.client import ask_run
    from .runtime.control.run_folder import find_run

    with errors_as_sentences(NotBack):
        if rolling:
            if engine is not None or frontend is not None:
                raise InvalidParameter("rolling", "is for all places: name no engine or frontend")
            trio.run(restart_rolling, partial(ask_run, find_run(run)), print_whole)
            return
        print_whole(trio.run(restart_text, run, engine, frontend))


@app.command
def drain(
    run: RunName = None,
    *,
    host: Annotated[str, Parameter(help="Name of the host.")],
) -> None:
    """Drain a host of a running server, and end it: it takes no new requests and finishes those
    that it runs, for at most its `--drain-grace` seconds; then other engines go on with them.
    """
    import trio

    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.running import drain_text

    with errors_as_sentences():
        print_whole(trio.run(drain_text, run, host))


@app.command
def keygen(
    file: pathlib.Path,
    /,
    *,
    rotate: Annotated[
        bool, Parameter(help="Give hosts another pair; that of before is let in until --retire.")
    ] = False,
    retire: Annotated[bool, Parameter(help="Let no pair in that was rotated.")] = False,
) -> None:
    """Make the keys of a cluster: for the head (`serve --key`), and for hosts (`engine --key`).

    A head that runs reads a changed file by `triolet reload`.
    """
    from .api.commands.exits import errors_as_sentences
    from .runtime.hosts import host_keys

    with errors_as_sentences():
        if rotate and retire:
            raise InvalidParameter("rotate", "and --retire exclude each other")
        if rotate:
            host_keys.rotate_cluster_keys(file)
        elif retire:
            host_keys.retire_cluster_keys(file)
        else:
            host_keys.write_cluster_keys(file)


@app.command
def reload(run: RunName = None) -> None:
    """Have a running head read the keys of hosts again; who comes by a retired one is refused."""
    import trio

    from .api.commands.exits import errors_as_sentences, print_whole
    from .api.commands.running import reload_text

    with errors_as_sentences():
        print_whole(trio.run(reload_text, run))


@app.command
def doctor(*, json: Annotated[bool, Parameter(help="JSON instead of lines.")] = False) -> None:
    """Describe this machine and installation, for a bug report. Contains no secrets."""
    from .api.commands.doctor import findings_text
    from .api.commands.exits import print_whole

    text, is_sound = findings_text(as_json=json)
    print_whole(text)
    raise SystemExit(not is_sound)


# Commands that the options of other servers are given to.
TAKING_PEERS = (["serve"], ["config", "show"])


def run_words(words: list[str] | None) -> None:
    """Run the command that `words` (or the program's arguments) say."""
    words = sys.argv[1:] if words is None else words
    try:
        command = next((each for each in TAKING_PEERS if words[: len(each)] == each), None)
        if command is not None:
            ours, notes = our_words(words[len(command) :])
            words = [*command, *ours]
            for note in notes:
                print(f"triolet: warning: {note}", file=sys.stderr)
        app(words, exit_on_error=False, print_error=False)
    except (CycloptsError, InvalidParameter) as error:  # the latter of an options class
        from .api.commands.exits import EXIT_USAGE, sentence

        text = parser_sentence(error) if isinstance(error, CycloptsError) else sentence(error)
        print(f"triolet: {text}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
