"""The fault catalogue, `FAULTS.md`: no row is left out, and what it names exists."""

import ast
import functools
import pathlib
import re
from collections.abc import Callable

from triolet.fuzz.__main__ import FUZZERS
from triolet.fuzz.chaos.fault_plan import FaultKind as ChaosFault
from triolet.fuzz.chaos.network.host_plan import HostFaultKind
from triolet.fuzz.simulator.bugs import BUGS
from triolet.fuzz.simulator.plan import FaultKind as SimulatorFault

FOLDER = pathlib.Path(__file__).parent
ROWS = 147
# Why a row has no test.
EXCUSES = ("needs a GPU", "needs several machines", "not applicable: ", "missing: ")


def table() -> list[tuple[int, str, str]]:
    """(number, where it is automated, what is looked at) of each row."""
    found = []
    for line in (FOLDER / "FAULTS.md").read_text().splitlines():
        if match := re.fullmatch(r"\| (\d+) \| [^|]+ \| ([^|]+) \| ?([^|]*) ?\|", line):
            found.append((int(match[1]), match[2], match[3]))
    return found


@functools.cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((FOLDER / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def is_test(reference: str) -> bool:
    path, _, name = reference.partition("::")
    return (FOLDER / path).is_file() and name in names_in(path)


KINDS: dict[str, Callable[[str], bool]] = {
    "chaos": {str(kind) for kind in ChaosFault}.__contains__,
    "hosts": {str(kind) for kind in HostFaultKind}.__contains__,
    "simulator": {str(kind) for kind in SimulatorFault}.__contains__,
    "fuzzer": {fuzzer.name for fuzzer in FUZZERS}.__contains__,
    "planted": BUGS.__contains__,
    "scenario": lambda name: (FOLDER / "scenarios" / name).is_file(),
}


def exists(reference: str) -> bool:
    kind, _, name = reference.partition(": ")
    return KINDS[kind](name) if kind in KINDS else is_test(reference)


def test_every_row_is_there_once_and_in_order() -> None:
    assert [number for number, *_ in table()] == list(range(1, ROWS + 1))


def test_what_a_row_names_exists() -> None:
    named = {
        (number, each) for number, where, _ in table() for each in re.findall("`(.+?)`", where)
    }
    assert len(named) > ROWS
    assert sorted(pair for pair in named if not exists(pair[1])) == []
    assert not exists("test_tidy.py::test_of_nothing")
    assert not exists("chaos: kill nobody")


def test_a_row_without_a_test_says_why() -> None:
    for number, where, seen in table():
        assert "`" in where or where.startswith(EXCUSES), number
        assert seen or where.startswith(EXCUSES), number
