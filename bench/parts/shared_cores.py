"""Serving beside busy loops: tokens a second with none, one and two other programs on the cores.

    python -m triolet.bench shared_cores small --rounds 3
    python -m triolet.bench shared_cores tiny --against 'llama=llama-server -m t.gguf --port {port}'

All servers are started first, then pressed in turns, each by the same load (chat completions,
streamed, 1 and 8 in flight) beside the same loops. `--against NAME=COMMAND` is another server, of
another checkout, of llama.cpp, of vLLM: `{port}` and `{model}` in its command are filled in, and it
is ready when `GET /health` says 200. The load client shares the cores, too.
"""

import argparse
import collections
import contextlib
import itertools
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial

import trio
from rich.console import Console
from rich.table import Table

from ...fuzz.observers import wait_until
from ..load.command import PressedServer, press, target_of
from ..load.measures import Measures, Series
from ..load.schedule import Load
from ..options import Protocol
from ..serving.startup import is_ok
from ..steps.machine import look_at_machine
from ..steps.shapes import SHAPES, shape_folder
from .words import argument_parser, at_least_one

OURS = f"{shlex.quote(sys.executable)} -P -m triolet serve {{model}} --port {{port}}"
PORT = 8890  # the first server's, the others' are the next ones
LOOPS = (0, 1, 2)
IN_FLIGHT = (1, 8)
TOKENS, PROMPT_WORDS = 64, 32
# Requests of a load: so many for each one in flight, and at least so many.
REQUESTS_EACH, REQUESTS_MIN = 3, 8
STOP_S = 20.0
# vLLM compiles for some minutes when it starts for the first time.
READY_S = 600.0
COLUMNS = 120

# {(loops, in flight): {server: its loads}}
Found = dict[tuple[int, int], dict[str, list[Measures]]]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes that want a core each, all the time."""
    with contextlib.ExitStack() as loops:
        for _ in range(count):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            loops.callback(loop.wait)
            loops.callback(loop.kill)
        yield


@contextlib.contextmanager
def running_servers(commands: Mapping[str, str], model: str) -> Iterator[dict[str, PressedServer]]:
    """Every server's address and process, before it is ready; stopped, or killed, afterwards."""
    with contextlib.ExitStack() as servers:
        found = {}
        for port, (name, command) in enumerate(commands.items(), PORT):
            words = [word.format(model=model, port=port) for word in shlex.split(command)]
            server = servers.enter_context(subprocess.Popen(words, stderr=subprocess.DEVNULL))
            servers.callback(stop, server)
            found[name] = PressedServer(target_of(f"http://127.0.0.1:{port}", ""), server.pid)
        yield found


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stop as Ctrl-C does; a server that does not heed it is killed."""
    server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()


async def press_all(servers: Mapping[str, PressedServer], rounds: int) -> Found:
    """Press the servers in turns, after one load each to warm up."""
    found: Found = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, server in servers.items():
        is_ready = partial(is_ok, server.target.port, "/health")
        await wait_until(is_ready, f"{name} is ready", seconds=READY_S)
    for number, loops, in_flight in itertools.product(range(rounds), LOOPS, IN_FLIGHT):
        load = load_of(in_flight, seed=number * 100 + loops * 10 + in_flight)
        turns = list(servers.items())[:: -1 if number % 2 else 1]
        with busy_loops(loops):
            for name, server in turns:
                measures = await press(load, server, Protocol.CHAT, warm_up=in_flight)
                found[loops, in_flight][name].append(measures)
    return found


def load_of(in_flight: int, *, seed: int) -> Load:
    """A load of some seconds."""
    return Load(
        requests=max(REQUESTS_MIN, REQUESTS_EACH * in_flight),
        in_flight=in_flight,
        tokens=TOKENS,
        prompt_words=PROMPT_WORDS,
        seed=seed,
    )


def table_of(shape: str, found: Found) -> Table:
    """A row for each load and server: medians, and the spread of tokens a second."""
    table = Table("loops, in flight", shape, "tokens/s", "gap p50, ms", "p99, ms", "CPU µs a token")
    for (loops, in_flight), servers in found.items():
        for name, runs in servers.items():
            table.add_row(
                f"{loops}, {in_flight}",
                name,
                Series.of([run.tokens_per_s for run in runs]).text(),
                f"{statistics.median(run.gap_s.p50 * 1e3 for run in runs):.1f}",
                f"{statistics.median(run.gap_s.p99 * 1e3 for run in runs):.0f}",
                f"{statistics.median(run.cost('server').cpu_us_per_token for run in runs):.0f}",
            )
    return table


def named_command(text: str) -> tuple[str, str]:
    """A server's name and its command."""
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise argparse.ArgumentTypeError(f"must be NAME=COMMAND, not {text!r}")
    return name, command


def main() -> None:
    """Print a table for each shape."""
    parser = argument_parser(__doc__)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--against", action="append", type=named_command, default=[])
    parser.add_argument("--rounds", type=at_least_one, default=3)
    arguments = parser.parse_args()
    console = Console(width=COLUMNS)
    console.print(look_at_machine().describe(), markup=False, highlight=False)
    for shape in arguments.shapes:
        commands = {"triolet": OURS, **dict(arguments.against)}
        with running_servers(commands, str(shape_folder(SHAPES[shape]))) as servers:
            console.print(table_of(shape, trio.run(press_all, servers, arguments.rounds)))


if __name__ == "__main__":
    main()
