"""The whole path without computing: prompts in, text out, through every real process.

    python -m triolet.bench whole_path

64 streams, the null executor, the client in the caller's process (which is root and frontend at
once). Prints tokens a second and CPU per token of each process; medians of some rounds.
"""

import os
import statistics
import time

import trio

from ... import Runtime, open_runtime
from ...engine.sampling_params import SamplingParams
from ...fuzz.observers import costs_of_tree, cpu_spent
from .calibration import Calibration, Target
from .words import argument_parser

STREAMS = 64
TOKENS = 400
ROUNDS = 7
TARGET_TOKENS_S = Target(60_000, at_least=True)


async def _stream(runtime: Runtime, number: int) -> None:
    params = SamplingParams(max_tokens=TOKENS, seed=number, ignore_eos=True)
    async with runtime.generate(f"prompt {number}", params) as stream:
        async for _ in stream:
            pass
    assert len(stream.token_ids) == TOKENS


async def run() -> None:
    """Print the table."""
    async with open_runtime(executor="null", max_num_seqs=STREAMS) as runtime:
        rates, costs, calibration = [], [], Calibration()
        for _ in range(ROUNDS + 1):
            before, began_s = costs_of_tree(os.getpid()), time.perf_counter()
            async with trio.open_nursery() as nursery:
                for number in range(STREAMS):
                    nursery.start_soon(_stream, runtime, number)
            rates.append(STREAMS * TOKENS / (time.perf_counter() - began_s))
            costs.append(cpu_spent(before, costs_of_tree(os.getpid())))
            print(f"  a round: {rates[-1]:.0f} tokens/s", flush=True)
            await trio.to_thread.run_sync(calibration.take)
    rates, costs = rates[1:], costs[1:]  # the first round warms up
    median = statistics.median(rates)
    print(f"{STREAMS} streams × {TOKENS} tokens, null executor, {ROUNDS} rounds")
    spread = f"({min(rates):.0f} to {max(rates):.0f})"
    verdict = TARGET_TOKENS_S.verdict(median, calibration.factor())
    print(f"tokens/s        {median:10.0f}   {spread} {verdict}")
    for name, title in (("root", "root + frontend"), ("engine", "engine"), ("worker", "worker")):
        spent = [cost[name] / (STREAMS * TOKENS) * 1e6 for cost in costs]
        print(
            f"{title:15} {statistics.median(spent):10.2f} µs CPU a token"
            f" ({min(spent):.2f} to {max(spent):.2f})"
        )
    print(calibration.describe())


def main() -> None:
    """Run by the command line."""
    argument_parser(__doc__).parse_args()
    trio.run(run)


if __name__ == "__main__":
    main()
