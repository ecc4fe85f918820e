"""Sends a poison again and again to a server whose processes die of it, and looks at the others.

    python -m tests.poisons [--minutes 10] [--places check mask …] [--vary 60] [--turn 10]

For each place where a content may end a process (check, compile, mask and consume of a form;
parsing of a head, of chunks, of a body or of a frame; rendering, tokenising) one server and eight
streams, which begin again when they end. In turns of ten seconds a client beside them sends the
poison, ten times a second at most. The server must be up in the end, each poison have ended two
processes at most, and each stream be what it was undisturbed. Printed are the streams' gaps and
first tokens in turns with and without the poison; their p99 should be within 1.5 times. `--vary`
makes the poison a new one after so many seconds, which costs two deaths each time. Exit code 1 for
a death too many or another text.
"""

import argparse
import pathlib
import sys
import tempfile

import trio

from triolet.api.commands.exits import until_terminated
from triolet.fuzz.chaos.poisoned_forms import FormPoison
from triolet.fuzz.chaos.poisoned_frontend import FrontendPoison

from .campaign import Campaign, PoisonOptions

PLACES: dict[str, FormPoison | FrontendPoison] = {
    poison.name.lower(): poison for poison in (*FormPoison, *FrontendPoison)
}


async def run(options: PoisonOptions, places: list[str]) -> bool:
    """Every place in turn; whether all is as it must be."""
    is_green = True
    for place in places:
        with tempfile.TemporaryDirectory(prefix="triolet-poisons-") as folder:
            report = await Campaign(pathlib.Path(folder), PLACES[place], options).run()
        print(f"{place}: {report.line()}", flush=True)
        is_green &= report.is_green
    return is_green


def main() -> None:
    """Run it and print what it showed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.poisons",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of each place")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--vary", type=float, default=0.0, help="a new poison after such seconds")
    parser.add_argument("--turn", type=float, default=10.0, help="seconds with, and without")
    given = parser.parse_args()
    options = PoisonOptions(60 * given.minutes, given.turn, given.vary, given.turn)
    sys.exit(not trio.run(until_terminated, lambda: run(options, given.places)))


if __name__ == "__main__":
    main()
