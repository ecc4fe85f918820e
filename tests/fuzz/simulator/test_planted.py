"""The kept tables of planted bugs: complete, and every bug is still found."""

import pytest

from triolet.fuzz.fuzzers import hosts, simulator, takeover
from triolet.fuzz.fuzzers.simulator import find_bug
from triolet.fuzz.simulator.planted import (
    ERROR,
    INVARIANT,
    Hunt,
    PlantedRow,
    check_of,
    kept_rows,
    render,
)
from triolet.fuzz.simulator.streams import Violation

HUNTS = (simulator.HUNT, takeover.HUNT, hosts.HUNT)
ROWS = [(hunt, row) for hunt in HUNTS for row in kept_rows(hunt.path.read_text())]
SEED = 1
# The plan of a row may have become another one: it is then searched for, so far.
ROUNDS_MAX = 60


@pytest.mark.parametrize("hunt", HUNTS, ids=lambda hunt: hunt.fuzzer.name)
def test_the_table_has_every_bug_and_what_it_breaks(hunt: Hunt) -> None:
    rows = kept_rows(hunt.path.read_text())
    assert [row.bug for row in rows] == list(hunt.bugs)
    assert {row.bug: row.breaks for row in rows} == hunt.breaks
    assert {row.bug for row in rows if row.found is None} == hunt.by_hand.keys()
    assert {row.check for row in rows} <= {*hunt.checks, INVARIANT, ERROR}
    assert render(rows, SEED, hunt) == hunt.path.read_text()


@pytest.mark.parametrize(("hunt", "row"), ROWS, ids=[row.bug for _, row in ROWS])
def test_a_planted_bug_is_found_by_the_simulation_of_its_row(hunt: Hunt, row: PlantedRow) -> None:
    number = row.simulations - 1
    try:
        hunt.simulate(hunt.events_of(row.bug, SEED, number), hunt.bugs[row.bug])
    except Exception as error:
        found = check_of(error, hunt.checks)
        assert (found == ERROR) == (row.check == ERROR)  # a fault of the simulation is no find
        return
    find_bug(row.bug, SEED, rounds=max(ROUNDS_MAX, 2 * number), hunt=hunt)


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
