"""Prints how the server does in every case.

python -m tests.conformance [NAME …]
"""

import sys
from collections import Counter

import trio
import trio.testing

from .cases import all_cases
from .client import Verdict, run_case
from .echo import serve_echo


async def main() -> None:
    """Run the cases, one after another; exit 1 when one fails."""
    names = sys.argv[1:]
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
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
