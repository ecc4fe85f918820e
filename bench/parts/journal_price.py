"""Price of the journal, or of takeover: two servers, one without it, in turns under the same load.

    python -m triolet.bench journal_price [rounds] [--takeover]

64 streams over WebSocket as fast as it goes and at 100 steps a second, and requests of one token
over HTTP, with the null executor. Of each: CPU of the frontend per token (first quartile and
median), the median of what was added round by round, and the 99th percentile of the time between
two outputs.
"""

import statistics

import attrs

from ..load.measures import Measures
from ..load.schedule import Load
from ..options import Protocol
from .serving import Serving, open_server
from .words import argument_parser, at_least_one

IN_FLIGHT = 64
ROUNDS = 8
TARGET = 0.03


@attrs.frozen
class Case:
    """A load on servers with these options."""

    title: str
    load: Load
    protocol: Protocol
    options: tuple[str, ...] = ()


CASES = (
    Case(
        "WebSocket, full speed, a token",
        Load(requests=5 * IN_FLIGHT, in_flight=IN_FLIGHT, tokens=300),
        Protocol.LANES,
    ),
    Case(
        "100 steps a second, a token",
        Load(requests=IN_FLIGHT, in_flight=IN_FLIGHT, tokens=300),
        Protocol.LANES,
        ("--null-step", "0.01"),
    ),
    Case(
        "HTTP, a request of one token",
        Load(requests=1500, in_flight=IN_FLIGHT, tokens=1),
        Protocol.HTTP,
    ),
)


def press_in_turns(case: Case, servers: list[Serving], rounds: int) -> list[list[Measures]]:
    """Figures of each server; the first round warms up and does not count."""
    found: list[list[Measures]] = [[] for _ in servers]
    for number in range(rounds + 1):
        turns = list(zip(servers, found, strict=True))
        for server, figures in turns if number % 2 else reversed(turns):
            figures.append(server.press(case.load, case.protocol))
    return [figures[1:] for figures in found]


def report(case: Case, figures: list[list[Measures]]) -> None:
    """Two lines, and what the first has more than the second."""
    costs = [[each.cost("frontend").cpu_us_per_token for each in one] for one in figures]
    gaps_ms = [statistics.median(each.gap_s.p99 for each in one) * 1e3 for one in figures]
    print(case.title)
    for title, spent, gap_ms in zip(("with", "without"), costs, gaps_ms, strict=True):
        quartile, median, _ = statistics.quantiles(spent, n=4)
        print(f"  {title}: {quartile:8.2f} µs ({median:.2f}), gap p99 {gap_ms:.2f} ms")
    added = [on / off - 1 for on, off in zip(*costs, strict=True)]
    low, median, high = statistics.quantiles(added, n=4)
    print(f"  added: {median:+.1%} ({low:+.1%} to {high:+.1%}); target ≤ {TARGET:.0%}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=at_least_one, default=ROUNDS)
    parser.add_argument("--takeover", action="store_true", help="of takeover")
    chosen = parser.parse_args()
    rounds = max(2, chosen.rounds)  # a spread needs two
    without = "--no-takeover" if chosen.takeover else "--no-journal"
    for case in CASES:
        options = ("--max-num-seqs", str(IN_FLIGHT), *case.options)
        with open_server(*options) as on, open_server(*options, without) as off:
            report(case, press_in_turns(case, [on, off], rounds))


if __name__ == "__main__":
    main()
