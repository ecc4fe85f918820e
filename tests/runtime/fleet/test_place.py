"""Places: what may not happen in one, and random walks; traces are in `tests/scenarios/place`."""

from random import Random

import pytest

from triolet.runtime.fleet.place import MOVES, State

from ...scenarios.place.driver import PlaceDriver


def step(driver: PlaceDriver, event: str, at: float) -> None:
    command, *words = event.split()
    list(vars(PlaceDriver)[command](driver, *words, at=f"{at}"))
    list(driver.seen())


@pytest.mark.parametrize("event", MOVES)
def test_what_may_not_happen_is_refused(event: str) -> None:
    for state in set(State) - MOVES[event]:
        driver = PlaceDriver()
        driver.machine.state = state
        with pytest.raises(AssertionError, match=f"engine 0 is {state.value}: {event}"):
            step(driver, event, 0.0)


@pytest.mark.parametrize("seed", range(10))
def test_any_life_leaves_the_invariants(seed: int) -> None:
    chance, driver, now = Random(seed), PlaceDriver(), 0.0
    for _ in range(200):
        state, now = driver.machine.state, now + chance.choice([0.0, 0.1, 30.0])
        events = [event for event in MOVES if state in MOVES[event]]
        if not driver.machine.has_process:
            events.append("begin")
        event = chance.choice(events)
        if event == "ready" and driver.machine.is_up:
            continue
        if event == "over" and state is State.WAITING:
            event = "over refused"
        kinds = ["killed", "fault", "unasked", "shortage", "handed_over"]
        if chance.random() < 0.2:
            driver.machine.handle_excused(driver.machine.epoch)
        step(driver, f"gone {chance.choice(kinds)}" if event == "gone" else event, now)
