"""An embedder's trio loop: CPU time of one turn without a runtime, twice, and with an idle one.

    python -m triolet.bench host_loop

A turn is one checkpoint of one task, the least that trio can do. CPU time is that of the loop's
thread, in nanoseconds; neighbours on the machine hardly change it. The executor is null.
"""

import statistics
import time

import trio

from ...runtime.runtime import open_runtime
from .words import argument_parser, at_least_one

TURNS = 100_000
# After the start of a runtime: imports, hand-shakes and links.
SETTLE_S = 1.0


async def take_turns() -> float:
    """Nanoseconds of this thread for one turn, the mean of many."""
    began_ns = time.thread_time_ns()
    for _ in range(TURNS):
        await trio.lowlevel.cancel_shielded_checkpoint()
    return (time.thread_time_ns() - began_ns) / TURNS


async def take_turns_beside(*, in_process: bool) -> float:
    """The same in the block of an idle runtime."""
    async with open_runtime(executor="null", in_process=in_process):
        await trio.sleep(SETTLE_S)
        return await take_turns()


async def run(rounds: int) -> None:
    """Print each kind's rounds and their median."""
    figures: dict[str, list[float]] = {}
    for _ in range(rounds):
        for kind, ns in (
            ("without", await take_turns()),
            ("without again", await take_turns()),
            ("in_process=True", await take_turns_beside(in_process=True)),
            ("with processes", await take_turns_beside(in_process=False)),
        ):
            figures.setdefault(kind, []).append(ns)
    for kind, values in figures.items():
        print(
            f"{kind:16} {statistics.median(values):6.0f} ns, {min(values):.0f} to {max(values):.0f}"
        )


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=at_least_one, default=9)
    trio.run(run, parser.parse_args().rounds)


if __name__ == "__main__":
    main()
