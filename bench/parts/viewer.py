"""Cost of one viewer of the live feed: the server's CPU with one, minus that without, in turns.

    python -m triolet.bench viewer [--seconds 60] [--rounds 5] [--streams 0 32]

Starts `triolet serve` with the null executor, whose steps take a fixed time: what a viewer costs is
not hidden by a model that computes. All processes of the server count, the clients do not.
"""

import json
import statistics
from functools import partial

import trio

from ...fuzz.observers import costs_of_tree
from ...nurseries.processes.usage import cpu_clock_s
from ...nurseries.tasks.background import start_background_task_soon
from .null_server import run_beside_server, wait_ready
from .words import argument_parser

PORT = 8878
STEP_S = 0.02
# By then a server has its spares, which import for a second or two of CPU time.
SETTLED_S = 8.0
FEED = (
    b"GET /admin/feed HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Authorization: Bearer admin\r\n\r\n"
)
STORY = json.dumps(
    {
        "input": "x",
        "stream": True,
        "max_output_tokens": 900,
        "runtime": {"ignore_eos": True},
    }
).encode()
STREAM = (
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(STORY), STORY)
)


async def _read_over_and_over(request: bytes) -> None:
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", PORT) as stream:
                await stream.send_all(request)
                while await stream.receive_some(65536):
                    pass
        except OSError:
            await trio.sleep(0.1)


async def _percent(pid: int, seconds: float, *, is_watched: bool) -> dict[str, float]:
    """CPU of each process, in percent of a core."""
    async with trio.open_nursery() as nursery:
        if is_watched:
            start_background_task_soon(nursery, _read_over_and_over, FEED, name="viewer")
        await trio.sleep(1.0)
        pids = {name: cost.pid for name, cost in costs_of_tree(pid).items()}
        before = {name: cpu_clock_s(each) for name, each in pids.items()}
        began_s = trio.current_time()
        await trio.sleep(seconds)
        used = {name: cpu_clock_s(each) - before[name] for name, each in pids.items()}
        elapsed_s = trio.current_time() - began_s
        nursery.cancel_scope.cancel("measured")
    return {name: 100 * used_s / elapsed_s for name, used_s in used.items()}


async def _measure(pid: int, streams: int, seconds: float, rounds: int) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(streams):
            start_background_task_soon(
                nursery, _read_over_and_over, STREAM, name=f"stream-{number}"
            )
        await trio.sleep(2.0)
        without, watched = [], []
        for _ in range(rounds):
            without.append(await _percent(pid, seconds, is_watched=False))
            watched.append(await _percent(pid, seconds, is_watched=True))
        nursery.cancel_scope.cancel("measured")
    print(f"{streams} streams, {rounds} × {seconds:g} s: % of a core, one viewer minus none")
    for name in watched[0]:
        pairs = zip(watched, without, strict=True)
        more = [after.get(name, 0.0) - before.get(name, 0.0) for after, before in pairs]
        print(f"  {name:24} {statistics.median(more):6.2f}")
    sums = [sum(a.values()) - sum(b.values()) for a, b in zip(watched, without, strict=True)]
    base = statistics.median(sum(each.values()) for each in without)
    spread = f"{min(sums):.2f} to {max(sums):.2f}"
    print(f"  {'all':24} {statistics.median(sums):6.2f}  ({spread}; without a viewer {base:.2f})")


async def _run(pid: int, streams: list[int], seconds: float, rounds: int) -> None:
    await wait_ready(PORT)
    await trio.sleep(SETTLED_S)
    for count in streams:
        await _measure(pid, count, seconds, rounds)


def main() -> None:
    """Print a table for each number of streams."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[0, 32])
    given = parser.parse_args()
    run = partial(_run, streams=given.streams, seconds=given.seconds, rounds=given.rounds)
    run_beside_server(PORT, STEP_S, ["--admin-key", "admin"], run)


if __name__ == "__main__":
    main()
