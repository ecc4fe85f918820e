"""Offline throughput beside `generate` of transformers, in turns.

    python -m triolet.bench offline
    python -m triolet.bench offline small --rounds 2

64 requests, prompts of 32 to 512 tokens, 128 tokens out, greedy, the shapes that figures are given
for; tiny with as many compute threads as the worker finds quickest, and with one and two. A round
of each warms up before; of the small model with 4 requests, as transformers takes minutes for 64.
`triolet bench throughput MODEL --against transformers` does it for any model.
"""

from collections.abc import Sequence

import trio
from rich.console import Console

from ..options import TRANSFORMERS, ThroughputOptions
from ..serving.reference import ReferenceRun
from ..serving.throughput import OfflineRun, measure_throughput
from ..steps.machine import look_at_machine
from ..steps.shapes import SHAPES, shape_folder
from ..tables import throughput_table
from .words import add_shapes, argument_parser, at_least_one

TARGETS = {"tiny": "≥ 6 × transformers", "small": "≥ 3.5 × transformers"}
# Other runtimes' tokens/s on two cores of Zen 5 with AVX512-BF16; reference figures.
PEERS = {
    "tiny": "openvino 9678, llama-server 5444, vLLM 4788 to 5004, transformers 2780",
    "small": "openvino 555, vLLM 269 to 480, llama-server 303",
}
REQUESTS = 64
COLUMNS = 110
# On slow cores the small model answers for a minute a round, transformers for two to four.
ROUNDS = {"tiny": 3, "small": 1}
WARM_UP_REQUESTS = {"tiny": None, "small": 4}
# Compute threads; 0: as is quickest, the default.
THREADS = {"tiny": (0, 1, 2), "small": (0,)}


def print_round(ours: OfflineRun, theirs: ReferenceRun | None) -> None:
    """A line as soon as it is over."""
    assert theirs is not None
    their_rate = theirs.output_tokens / theirs.elapsed_s
    print(
        f"  a round: triolet {ours.output_tokens_s:.0f} tokens/s in {ours.elapsed_s:.1f} s,"
        f" transformers {their_rate:.0f} in {theirs.elapsed_s:.1f} s",
        flush=True,
    )


async def run(names: Sequence[str], requests: int, rounds: int | None) -> None:
    """Print the tables."""
    console = Console(width=COLUMNS)
    console.print(look_at_machine().describe(), markup=False, highlight=False)
    for name in names:
        options = ThroughputOptions(
            requests=requests, against=TRANSFORMERS, rounds=rounds or ROUNDS[name]
        )
        folder = str(shape_folder(SHAPES[name]))
        for threads in THREADS[name]:
            console.print(
                f"compute threads: {threads or 'as is quickest'}, rounds: {options.rounds}",
                highlight=False,
            )
            found = await measure_throughput(
                folder,
                options,
                engine={"threads": threads},
                warm_up_requests=WARM_UP_REQUESTS[name],
                on_round=print_round,
            )
            console.print(throughput_table(found))
        console.print(f"target {TARGETS[name]}; elsewhere: {PEERS[name]}", highlight=False)


def main() -> None:
    """Run by the command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=at_least_one, help="tiny: 3, small: 1")
    parser.add_argument("--requests", type=at_least_one, default=REQUESTS, help="targets: 64")
    add_shapes(parser)
    options = parser.parse_args()
    trio.run(run, options.shapes, options.requests, options.rounds)


if __name__ == "__main__":
    main()
