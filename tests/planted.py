"""Table of planted bugs, mutations and canaries, and the commands that find each.

    python -m tests.planted          every one, with what finds it
    python -m tests.planted --sums   how many of each kind

`make test` finds all but the mutations, each by the test that is named; the command them alone.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Final

import attrs

from triolet.fuzz.__main__ import FUZZERS
from triolet.fuzz.simulator.bugs import BUGS
from triolet.fuzz.simulator.hosts.bugs import HOST_BUGS
from triolet.fuzz.simulator.mutations import MODULES, PACKAGE, mutations_of
from triolet.fuzz.simulator.takeover.bugs import TAKEOVER_BUGS

# Fewer is a loss: who lowers one names, in that commit, what finds the same now. (Mutations are as
# many as the comparisons that there are.)
LEAST: Final = {"bug": 82, "takeover bug": 28, "host bug": 11, "canary": 129, "mutation": 1}


@attrs.frozen
class Planted:
    """A fault that is put into a copy or a run, never into what is served."""

    kind: str
    name: str
    # The command alone, and the test of `make test`: "" where it is found by hand.
    command: str
    test: str


def planted() -> Iterator[Planted]:
    """All of them."""
    folder = "tests/fuzz/simulator"
    for bug in BUGS:
        yield Planted("bug", bug, "triolet.fuzz simulate --bugs", f"{folder}/test_planted.py")
    for bug in TAKEOVER_BUGS:
        command = "triolet.fuzz simulate --takeover --bugs"
        yield Planted("takeover bug", bug, command, f"{folder}/test_planted.py")
    for bug in HOST_BUGS:
        command = "triolet.fuzz simulate --hosts --bugs"
        yield Planted("host bug", bug, command, f"{folder}/test_planted.py")
    for fuzzer in FUZZERS:
        for fault in fuzzer.faults:
            name, test = f"{fuzzer.name}: {fault}", "tests/fuzz/fuzzers/test_fuzzers.py"
            yield Planted("canary", name, "triolet.fuzz canary", test)
    for module in MODULES:
        for each in mutations_of(module, (PACKAGE / module).read_text()):
            name = f"{module}:{each.line}: {each.source}"
            yield Planted("mutation", name, f"triolet.fuzz mutate --only {module}", "")


def sums() -> Counter[str]:
    """How many of each kind."""
    return Counter(each.kind for each in planted())


def main() -> None:
    """Print the table, or its sums."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.planted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sums", action="store_true")
    if not parser.parse_args().sums:
        for each in planted():
            print(each.kind, each.name, f"python -m {each.command}", each.test, sep=" | ")
    print(", ".join(f"{count} of kind {kind}" for kind, count in sums().items()))


if __name__ == "__main__":
    main()
