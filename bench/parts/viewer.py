"""Cost of one viewer of the live feed: the server's CPU with one, minus that without, in turns.

    python -m triolet.bench viewer [--seconds 60] [--rounds 5] [--streams 0 32]

The null executor, whose steps take a fixed time: what a viewer costs is not hidden by a model that
computes. All processes of the server count, the clients do not.
"""

import statistics

import trio

from ...fuzz.observers import costs_of_tree
from ...nurseries.processes.usage import cpu_clock_s
from ...nurseries.tasks.background import start_background_task_soon
from ..load.measures import Series
from ..load.schedule import Load
from ..options import Protocol
from .serving import Serving, open_server
from .words import argument_parser, at_least_one

OPTIONS = ("--null-step", "0.02", "--admin-key", "admin")
TOKENS = 900
# More than are ever asked for: the streams end with the measurement.
REQUESTS = 10**6
SETTLED_S = 2.0


async def view(server: Serving) -> None:
    """Read the feed, for ever."""
    head = server.target.head("GET", "/admin/feed", Authorization="Bearer admin")
    async with await trio.open_tcp_stream(server.target.host, server.target.port) as stream:
        await stream.send_all(head)
        while await stream.receive_some(65536):
            pass


async def percent(server: Serving, seconds: float, *, is_watched: bool) -> dict[str, float]:
    """CPU of each process, in percent of a core."""
    async with trio.open_nursery() as nursery:
        if is_watched:
            start_background_task_soon(nursery, view, server, name="viewer")
        await trio.sleep(SETTLED_S)
        pids = {name: cost.pid for name, cost in costs_of_tree(server.pid).items()}
        before = {name: cpu_clock_s(each) for name, each in pids.items()}
        began_s = trio.current_time()
        await trio.sleep(seconds)
        used = {name: cpu_clock_s(each) - before[name] for name, each in pids.items()}
        elapsed_s = trio.current_time() - began_s
        nursery.cancel_scope.cancel("measured")
    return {name: 100 * used_s / elapsed_s for name, used_s in used.items()}


async def run(server: Serving, streams: int, seconds: float, rounds: int) -> None:
    """Print a table for so many streams."""
    without, watched = [], []
    async with trio.open_nursery() as nursery:
        if streams:
            load = Load(requests=REQUESTS, in_flight=streams, tokens=TOKENS)
            nursery.start_soon(server.runner(load, Protocol.SSE).run)
        await trio.sleep(SETTLED_S)
        for _ in range(rounds):
            without.append(await percent(server, seconds, is_watched=False))
            watched.append(await percent(server, seconds, is_watched=True))
        nursery.cancel_scope.cancel("measured")
    print(f"{streams} streams, {rounds} × {seconds:g} s: % of a core, one viewer minus none")
    for name in watched[0]:
        pairs = zip(watched, without, strict=True)
        more = [after.get(name, 0.0) - before.get(name, 0.0) for after, before in pairs]
        print(f"  {name:24} {statistics.median(more):6.2f}")
    more = [sum(a.values()) - sum(b.values()) for a, b in zip(watched, without, strict=True)]
    base = statistics.median(sum(each.values()) for each in without)
    print(f"  {'all':24} {Series.of(more).text(2)}  (without a viewer {base:.2f})", flush=True)


def main() -> None:
    """Print a table for each number of streams."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=at_least_one, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[0, 32])
    given = parser.parse_args()
    with open_server(*OPTIONS) as server:
        for streams in given.streams:
            trio.run(run, server, streams, given.seconds, given.rounds)


if __name__ == "__main__":
    main()
