"""Prints the cancellation table: task, process, checkpoints reached, invariants, result.

python -m tests.cancellation [NAME …]
"""

import argparse
import sys
import time
from functools import partial

import trio

from triolet.tests.cancellation.table import ROWS


def main() -> None:
    """Run the rows, one after another; exit 1 when one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.cancellation", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a task of the table; else all")
    names = parser.parse_args().names
    if strange := set(names) - {row.name for row in ROWS}:
        parser.error(f"no such task: {', '.join(sorted(strange))}")
    failures = 0
    print(f"{'task':24}{'process':22}{'checkpoints':>11}  result")
    for row in ROWS:
        if names and row.name not in names:
            continue
        started_s = time.monotonic()
        try:
            reached = str(trio.run(partial(row.run, every=True)))
            result = "green" if int(reached) else "never reached"
        except Exception as error:
            reached, result = "", f"FAILED: {error!r}"
        failures += result != "green"
        took_s = time.monotonic() - started_s
        print(
            f"{row.name:24}{row.where:22}{reached:>11}  {result}: {row.invariants}"
            f" ({took_s:.1f} s)",
            flush=True,
        )
    print("all green" if not failures else f"{failures} rows failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
