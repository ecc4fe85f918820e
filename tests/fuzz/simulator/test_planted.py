"""The kept table of planted bugs: it is complete, and every bug is still found by a named check."""

import pytest

from triolet.fuzz.fuzzer import draw_round
from triolet.fuzz.fuzzers.simulator import FUZZER, HUNT, find_bug
from triolet.fuzz.simulator.bugs import BUGS
from triolet.fuzz.simulator.directed import DIRECTED
from triolet.fuzz.simulator.planted import (
    BREAKS,
    CHECKS,
    ERROR,
    INVARIANT,
    PlantedRow,
    check_of,
    kept_rows,
    render,
)
from triolet.fuzz.simulator.simulation import simulate
from triolet.fuzz.simulator.streams import Violation

ROWS = kept_rows(HUNT.path.read_text())
SEED = 1
# The plan of a row may have become another one: it is then searched for, so far.
ROUNDS_MAX = 60


def test_the_table_has_every_bug_and_what_it_breaks() -> None:
    assert [row.bug for row in ROWS] == list(BUGS)
    assert {row.bug: row.breaks for row in ROWS} == BREAKS
    assert {row.bug for row in ROWS if row.found is None} == DIRECTED.keys()
    assert render(ROWS, SEED, HUNT) == HUNT.path.read_text()


def test_every_check_of_the_table_has_a_name() -> None:
    assert {row.check for row in ROWS} <= {*CHECKS, INVARIANT, ERROR}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.found is not None], ids=lambda row: row.bug
)
def test_a_planted_bug_is_found_by_the_simulation_of_its_row(row: PlantedRow) -> None:
    assert row.found is not None
    try:
        simulate(draw_round(FUZZER, SEED, row.found), BUGS[row.bug])
    except Exception:
        return
    find_bug(row.bug, SEED, rounds=max(ROUNDS_MAX, 2 * row.found))


@pytest.mark.parametrize(
    ("said", "check"),
    [
        ("request-1: tokens [7] at 3 of choice 0, not [[8]]", "identity"),
        ("request-1: tokens [7] at 3 of choice 0, before [8]", "exactly once"),
        ("request-1 ended by length", "identity"),
        ("request-1: 9 tokens, and credit for 8", "credit"),
        ("streams without end: request-2", "one end"),
        ("10 s after the last stream: engine 0 has 20 of 32 blocks", "accounts"),
        ("request-0 has ended 17 engines", "bound"),
        ("nothing of the kind", "invariants"),
    ],
)
def test_a_violation_has_the_name_of_its_check(said: str, check: str) -> None:
    assert check_of(Violation(said)).partition(":")[0] == check


def test_an_error_that_nothing_checks_has_a_name_too() -> None:
    assert check_of(KeyError("x")) == ERROR
