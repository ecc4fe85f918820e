"""The kept table of takeover's planted bugs: complete, and each is still found by its check."""

from random import Random

import pytest

from triolet.fuzz.fuzzer import draw_round
from triolet.fuzz.fuzzers.simulator import find_bug
from triolet.fuzz.fuzzers.takeover import HUNT
from triolet.fuzz.simulator.planted import PlantedRow, check_of, kept_rows, render
from triolet.fuzz.simulator.takeover.bugs import TAKEOVER_BUGS

ROWS = kept_rows(HUNT.path.read_text())
SEED = 1


def test_the_table_has_every_bug_and_what_it_breaks() -> None:
    assert [row.bug for row in ROWS] == list(TAKEOVER_BUGS) == list(HUNT.breaks)
    assert {row.bug for row in ROWS if row.found is None} == HUNT.by_hand.keys()
    assert {row.check for row in ROWS} <= HUNT.checks.keys()
    assert render(ROWS, SEED, HUNT) == HUNT.path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.bug)
def test_a_planted_bug_is_found_by_the_simulation_of_its_row(row: PlantedRow) -> None:
    number = row.simulations - 1
    events = draw_round(HUNT.fuzzer, SEED, number)
    if row.bug in HUNT.by_hand:
        chance = Random(f"{HUNT.fuzzer.name} {SEED} {number}")
        events = HUNT.by_hand[row.bug](chance, HUNT.fuzzer.round_events)
    found = row.check
    try:
        HUNT.simulate(events, HUNT.bugs[row.bug])
    except Exception as error:
        found = check_of(error, HUNT.checks)
    else:
        find_bug(row.bug, SEED, hunt=HUNT)  # the plan of its row has become another one
    assert found == row.check
