"""Times of one key's requests alone, and beside another key that floods; ten times the capacity.

    python -m triolet.bench overload [--seconds 45]

The null executor, 16 rows and steps of 0.1 s: with 20 tokens each it answers 8 requests in a
second. One key sends 2 in a second, by itself and beside one that sends 80.
"""

import attrs
import trio

from ..load.command import make_runner
from ..load.measures import Measures, measure
from ..load.schedule import Load
from ..options import Protocol
from .serving import Serving, open_server
from .words import argument_parser

TOKENS = 20
CALM_PER_S, FLOOD_PER_S = 2, 80
# More than are ever waiting for an answer.
IN_FLIGHT = 128
OPTIONS = (
    *("--null-step", "0.1", "--max-num-seqs", "16", "--api-key", "calm", "--api-key", "flood"),
    *("--limits.connections-per-address-max", str(3 * IN_FLIGHT)),
)


async def press(server: Serving, key: str, per_s: int, seconds: float) -> Measures:
    """Requests at a rate, by one key; returns when each has its answer."""
    load = Load(requests=int(per_s * seconds), in_flight=IN_FLIGHT, rate=per_s, tokens=TOKENS)
    target = attrs.evolve(server.target, key=key)
    return measure(await make_runner(load, target, Protocol.HTTP).run())


def print_row(title: str, found: Measures) -> None:
    """Answers and their times, and how many were refused."""
    refused = ", ".join(f"{count} × {kind}" for kind, count in found.errors.items())
    spread = found.total_s
    print(f"{title:28} {found.completed:8} {spread.p50:7.2f} {spread.p99:7.2f}  {refused}")


async def run(server: Serving, seconds: float) -> None:
    """Print a row for each key."""
    print(f"{'':28} {'answers':>8} {'p50 s':>7} {'p99 s':>7}  refused")
    print_row("calm key alone", await press(server, "calm", CALM_PER_S, seconds))
    found: dict[str, Measures] = {}

    async def note(key: str, per_s: int) -> None:
        found[key] = await press(server, key, per_s, seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note, "flood", FLOOD_PER_S)
        nursery.start_soon(note, "calm", CALM_PER_S)
    print_row("calm key beside a flood", found["calm"])
    print_row("key that floods", found["flood"])


def main() -> None:
    """Run by the command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0)
    seconds = parser.parse_args().seconds
    with open_server(*OPTIONS) as server:
        trio.run(run, server, seconds)


if __name__ == "__main__":
    main()
