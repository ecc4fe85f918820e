"""Work that lies ready, beside `generate` of transformers in turns with ours.

    python -m tests.benchmarks offline

64 requests, prompts of 32 to 512 tokens, 128 tokens out, greedy, the shapes that figures are given
for. `triolet bench throughput MODEL --against transformers` does it for any model.
"""

import sys

import trio
from rich.console import Console

from triolet.fuzz.bench.machine import look_at_machine
from triolet.fuzz.bench.options import TRANSFORMERS, ThroughputOptions
from triolet.fuzz.bench.shapes import SHAPES, shape_folder
from triolet.fuzz.bench.tables import throughput_table
from triolet.fuzz.bench.throughput import measure_throughput

TARGETS = {"tiny": "≥ 6 × transformers", "small": "≥ 3.5 × transformers"}
# Of other runtimes, tokens/s on two cores of Zen 5 with AVX512-BF16; reference figures.
PEERS = {
    "tiny": "openvino 9678, llama-server 5444, vLLM 4788 to 5004, transformers 2780",
    "small": "openvino 555, vLLM 269 to 480, llama-server 303",
}
COLUMNS = 110
# The small model answers for half a minute a round, transformers for two.
ROUNDS = {"tiny": 3, "small": 1}


async def run(names: list[str]) -> None:
    """Print the tables."""
    console = Console(width=COLUMNS)
    console.print(look_at_machine().describe(), markup=False, highlight=False)
    for name in names:
        options = ThroughputOptions(against=TRANSFORMERS, rounds=ROUNDS[name])
        found = await measure_throughput(str(shape_folder(SHAPES[name])), options, engine={})
        console.print(throughput_table(found))
        console.print(f"target {TARGETS[name]}; elsewhere: {PEERS[name]}", highlight=False)


if __name__ == "__main__":
    trio.run(run, sys.argv[1:] or list(SHAPES))
