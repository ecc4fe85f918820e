"""Serving in closed loop, beside what other runtimes did on a machine of the same kind.

    python -m triolet.bench peers
    python -m triolet.bench peers small --quick

HTTP (SSE) and lanes, concurrency 1, 8 and 32, prompts of 32 to 512 tokens, 128 tokens out, greedy,
the shapes that figures are given for; four requests for each in flight, or one (`--quick`: on slow
cores the small model takes minutes for all). Load client and server share two cores, as theirs did.
"""

import trio
from rich.console import Console
from rich.table import Table

from ..options import LatencyOptions
from ..serving.latency import LatencyRow, measure_latency
from ..steps.machine import look_at_machine
from ..steps.shapes import SHAPES, shape_folder
from ..tables import latency_table
from .words import add_shapes, argument_parser

# {shape: {peer: (tokens/s at 1, 8, 32)}}: reference figures, Zen 5 with AVX512-BF16.
PEERS = {
    "tiny": {
        "llama-server": (1601, 2967, 2584),
        "vLLM": (453, 1916, 3243),
        "transformers": (33, 968, 589),
    },
    "small": {
        "llama-server": (105, 177, 268),
        "vLLM, 2 threads": (60, 265, 385),
        "vLLM": (58, 194, 241),
    },
}
# {peer: (first token p50, gap mean) in ms at 1, 8, 32}, of tiny.
TIMES = {
    "llama-server": ((15, 0.5), (61, 2.2), (143, 10.8)),
    "vLLM": ((20, 2.1), (75, 3.0), (152, 8.7)),
}
COLUMNS = 140


def print_row(row: LatencyRow) -> None:
    """A line as soon as it is over."""
    rate = row.measures.tokens_per_s
    print(f"  {row.protocol.value}, {row.loop()} in flight: {rate:.0f} tokens/s", flush=True)


async def run(names: list[str], quick: bool) -> None:
    """Print the tables."""
    console = Console(width=COLUMNS)
    console.print(look_at_machine().describe(), markup=False, highlight=False)
    for name in names:
        table = Table("tokens/s of others", "1", "8", "32")
        for peer, rates in PEERS[name].items():
            table.add_row(peer, *map(str, rates))
        console.print(table)
        rows = await measure_latency(
            str(shape_folder(SHAPES[name])),
            LatencyOptions(quick=quick),
            engine={},
            on_event=lambda _: None,
            on_row=print_row,
        )
        console.print(latency_table(name, rows))
    times = [f"{peer} {at}" for peer, at in TIMES.items()]
    console.print(f"tiny, first token p50 and gap mean at 1, 8, 32: {'; '.join(times)}")


def main() -> None:
    """Run by the command line."""
    parser = argument_parser(__doc__)
    add_shapes(parser)
    parser.add_argument("--quick", action="store_true", help="one request for each in flight")
    words = parser.parse_args()
    trio.run(run, words.shapes, words.quick)


if __name__ == "__main__":
    main()
