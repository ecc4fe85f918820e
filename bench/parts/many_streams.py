"""A thousand streams at once: memory of the frontend for each, and lateness of tokens.

    python -m triolet.bench many_streams

The null executor, four steps a second, every stream a lane of a WebSocket. Memory is what the
frontend has more of than before, at its most. The delay added is how much later than the median
gap the next token comes: the engine says all tokens of a step at once, so whoever is served last
waits for all others.
"""

import itertools
import statistics

import trio

from ...fuzz.observers import costs_of_tree
from ..load.measures import Spread
from ..load.schedule import Load
from ..options import Protocol
from .calibration import Calibration
from .serving import Serving, costs, measured, open_server, print_costs
from .words import argument_parser

STREAMS = 1000
TOKENS = 40
STEP_S = 0.25
SAMPLE_S = 0.2
OPTIONS = {
    "null-step": STEP_S,
    "max-num-seqs": STREAMS,
    "max-num-batched-tokens": 4 * STREAMS,
    "admission.active-requests-max": 2 * STREAMS,
    "wait-target": 0,
}


async def run(server: Serving) -> None:
    """Run the load beside a task that looks at the frontend's memory."""
    runner = server.runner(Load(requests=STREAMS, in_flight=STREAMS, tokens=TOKENS), Protocol.LANES)
    before = costs_of_tree(server.pid)["frontend"].resident_mib
    most = before

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, costs_of_tree(server.pid)["frontend"].resident_mib)
            await trio.sleep(SAMPLE_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        outcome = await runner.run()
        nursery.cancel_scope.cancel("the load is over")
    figures = measured(outcome)
    gaps = [
        later - earlier
        for history in outcome.histories
        for earlier, later in itertools.pairwise(history.delta_times_s)
    ]
    usual_s = statistics.median(gaps)
    added = Spread.of([max(gap - usual_s, 0.0) for gap in gaps])
    print(f"{STREAMS} streams, {TOKENS} tokens each, a step of {STEP_S:g} s")
    print(f"frontend's memory     {(most - before) * 1024 / STREAMS:8.1f} KiB a stream")
    print(f"usual gap             {usual_s * 1e3:8.1f} ms")
    print(f"delay added           {added.p50 * 1e3:8.1f} ms p50, {added.p99 * 1e3:.1f} ms p99")
    print_costs("CPU of the frontend per token", costs([figures], [figures.output_tokens]))


def main() -> None:
    """Print the table."""
    argument_parser(__doc__).parse_args()
    words = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
    with open_server(*words) as server:
        server.press(Load(requests=64, tokens=4), Protocol.LANES)
        calibration = Calibration()
        calibration.take()
        trio.run(run, server)
        calibration.take()
        print(calibration.describe())


if __name__ == "__main__":
    main()
