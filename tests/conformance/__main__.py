"""Prints how the server does in every case.

python -m tests.conformance [NAME …]
"""

import argparse
import sys
from collections import Counter

import trio
import trio.testing

from .cases import all_cases
from .client import Verdict, run_case, serve_echo


async def main(names: list[str]) -> None:
    """Run the cases, one after another; exit 1 when one fails."""
    counts: Counter[Verdict] = Counter()
    for case in all_cases():
        if names and case.name not in names:
            continue
        result = await run_case(case, serve_echo)
        counts[result.verdict] += 1
        if result.verdict is not Verdict.OK or names:
            print(f"{result.name:8} {result.verdict.value:14} {result.reason}", flush=True)
    print(", ".join(f"{verdict.value} {counts[verdict]}" for verdict in Verdict))
    sys.exit(counts[Verdict.FAILED] > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a case of the list; else all")
    named = parser.parse_args().names
    if strange := set(named) - {case.name for case in all_cases()}:
        parser.error(f"no such case: {', '.join(sorted(strange))}")
    trio.run(main, named, clock=trio.testing.MockClock(autojump_threshold=0))
