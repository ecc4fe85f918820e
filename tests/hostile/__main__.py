"""Sends what was reported to break servers, and drawn forms, to `triolet serve`, streams beside.

    python -m tests.hostile [--forms 10000] [--engines 1] [--frontends 1] [--seed 1]

Every input of public bug reports, with the answer that is right, and forms with numbers at all
boundaries in all keywords, deep, wide and spoiled ones, by the unmodified `openai` SDK with its
default retries. Printed are the statuses by field, and every process before and after. Exit code 1
if an answer was wrong, a status other than 200 or 400, a whole answer that violates its schema, a
stream beside them another one, or a process another.
"""

import argparse
import sys
from functools import partial

import attrs
import trio

from triolet.api.commands.exits import until_terminated

from .campaign import HostileOptions, run_hostile


def main() -> None:
    """Run it and print what it showed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for field in attrs.fields(HostileOptions):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    options = HostileOptions(**vars(parser.parse_args()))
    run = partial(run_hostile, options, partial(print, flush=True))
    report = trio.run(until_terminated, run)
    print(*report.lines(), sep="\n")
    sys.exit(not report.is_green)


if __name__ == "__main__":
    main()
