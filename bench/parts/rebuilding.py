"""Ten thousand streams of one frontend that is killed: until each goes on.

    python -m triolet.bench rebuilding [streams]

The null executor, a step every two seconds, every stream a lane of a held WebSocket, a warm spare
beside. Times since SIGKILL: the ledger is rebuilt, so that RESYNCs name every stream (as the
successor's log says), and the next token at clients, which also waits for a step of the engine.
"""

import json
import os
import pathlib
import signal
import tempfile
from datetime import UTC, datetime

import trio

from ...fuzz.chaos.served_run import ServedRun, open_served_run
from ...fuzz.observers import wait_until
from ..load.client import Target
from ..load.command import make_runner
from ..load.measures import Spread
from ..load.runner import Runner
from ..load.schedule import Load
from ..options import Protocol
from .words import argument_parser, at_least_one

STREAMS = 10_000
TARGET_S = 1.0
STEP_S = 2.0
# More than are seen: the run ends when every stream has gone on.
TOKENS = 400
# Time for all to begin, and for all to go on.
BEGIN_S, GO_ON_S = 240.0, 120.0
LOOK_S = 0.05
# The most that an engine takes.
BATCH_TOKENS_MAX = 131_072
# Lines of the successor's log: the ledger, the RESYNC, the responses.
REBUILT = ("rebuilt in", "requests go on", "can be read on")


def options(streams: int) -> list[str]:
    """Options of the server, none of which is a bound."""
    values = {
        "executor": "null",
        "frontends": 1,
        "null-step": STEP_S,
        "max-num-seqs": streams,
        "max-num-batched-tokens": min(32 * streams, BATCH_TOKENS_MAX),
        "admission.active-requests-max": 2 * streams,
        "admission.queued-tokens-max": 1000 * streams,
        "wait-target": 0,
        "limits.connections-per-address-max": streams,
        "log-format": "json",
    }
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


async def run(streams: int) -> None:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory(prefix="triolet-rebuilding-") as folder:
        async with open_served_run(pathlib.Path(folder), options(streams)) as server:
            await wait_until(lambda: server.has_spares(2), "it has spares", seconds=BEGIN_S)
            load = Load(requests=streams, in_flight=streams, tokens=TOKENS)
            target = Target(host="127.0.0.1", port=server.port)
            runner = make_runner(load, target, Protocol.LANES, pid=server.pid)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runner.run)
                await measure(server, runner, streams)
                nursery.cancel_scope.cancel("every stream has gone on")


async def measure(server: ServedRun, runner: Runner, streams: int) -> None:
    """Kill the frontend once all have begun."""

    def gone_on(since_s: float) -> list[float]:
        """Times at which streams have gone on."""
        last = (history.delta_times_s[-1:] for history in runner.histories)
        return [times[0] for times in last if times and times[0] > since_s]

    await wait_until(
        lambda: len(gone_on(0.0)) == streams, "all begin", seconds=BEGIN_S, look_s=LOOK_S
    )
    processes = await server.processes()
    killed_s, killed_at = runner.now(), datetime.now(UTC)  # by the clock of the log, too
    os.kill(processes["frontend 0"].pid, signal.SIGKILL)
    await wait_until(
        lambda: len(gone_on(killed_s)) == streams, "all go on", seconds=GO_ON_S, look_s=LOOK_S
    )
    first = Spread.of(
        [
            next(at_s for at_s in history.delta_times_s if at_s > killed_s) - killed_s
            for history in runner.histories
        ]
    )
    head = f"{streams} streams of one frontend; seconds since SIGKILL, a step takes {STEP_S:g}"
    print(f"{head}; target: requests go on within {TARGET_S:g}")
    for line in server.log().splitlines():
        record = json.loads(line) if line.startswith("{") else {}
        if any(words in record.get("message", "") for words in REBUILT):
            at = datetime.fromisoformat(record["time"]) - killed_at
            print(f"  {at.total_seconds():6.2f}  {record['message']}")
    print(f"  {first.p50:6.2f}  next token at clients, median; p99 {first.p99:.2f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("streams", nargs="?", type=at_least_one, default=STREAMS)
    trio.run(run, parser.parse_args().streams)


if __name__ == "__main__":
    main()
