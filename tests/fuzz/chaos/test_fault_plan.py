"""A seed gives one schedule; every kind comes before any comes again."""

from collections import Counter

import pytest

from triolet.fuzz.chaos.fault_plan import (
    DECK,
    DISCONNECTS,
    KILLS,
    SLOW,
    SPARE_ENGINE,
    STOPS,
    Fault,
    FaultKind,
    Transport,
    digest,
    make_plan,
)

SHAPE = {"engines": 2, "frontends": 3, "scripts": 3}


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    assert make_plan(5, 60, **SHAPE) == make_plan(5, 60, **SHAPE)
    assert digest(make_plan(5, 60, **SHAPE)) != digest(make_plan(6, 60, **SHAPE))


def test_a_longer_plan_begins_as_a_shorter_one() -> None:
    assert make_plan(5, 60, **SHAPE)[:17] == make_plan(5, 17, **SHAPE)


def test_every_kind_comes_once_before_any_comes_again() -> None:
    plan = make_plan(1, 3 * len(DECK), **SHAPE)
    for start in range(0, len(plan), len(DECK)):
        kinds = Counter(fault.kind for fault in plan[start : start + len(DECK)])
        assert kinds == Counter(DECK)
    assert FaultKind.KILL_ROOT not in DECK


@pytest.mark.parametrize("seed", range(5))
def test_every_fault_can_be_made(seed: int) -> None:
    for fault in make_plan(seed, 200, **SHAPE):
        if fault.place.startswith("engine"):
            assert fault.rank < 2
        if fault.place.startswith("frontend"):
            assert fault.rank < 3
        if fault.kind in STOPS | SLOW:
            assert fault.seconds > 0
        if fault.kind in (FaultKind.CANCEL_SOCKET, FaultKind.LEAVE):
            assert fault.transport is Transport.SOCKET
        if fault.kind in (FaultKind.CANCEL_HTTP, FaultKind.CANCEL_SOCKET):
            assert fault.token >= 1, "an id to cancel by is known from the first event on"
        assert bool(fault.deaths) == (fault.kind in KILLS)
        assert not fault.also or fault.also != fault.place
        assert bool(fault.place) == (fault.kind in KILLS | STOPS)


def test_two_may_die_in_one_moment() -> None:
    plan = make_plan(3, 60, **SHAPE)
    for kind, also in ((FaultKind.KILL_ENGINES, "engine"), (FaultKind.KILL_PAIR, "frontend")):
        fault = next(each for each in plan if each.kind is kind)
        assert fault.also.startswith(also)
        assert fault.deaths == {fault.place: 1, fault.also: 1}


def test_a_spare_may_die_with_the_engine_and_is_no_life() -> None:
    fault = next(f for f in make_plan(3, 60, **SHAPE) if f.kind is FaultKind.KILL_SPARE)
    assert fault.also == SPARE_ENGINE
    assert fault.deaths == {fault.place: 1}


def test_moments_are_early_and_late() -> None:
    tokens = Counter(fault.token for fault in make_plan(2, 300, **SHAPE))
    assert {0, 1, 2, 3} < set(tokens)
    assert any(token > 30 for token in tokens)


@pytest.mark.parametrize(
    ("kind", "place", "deaths"),
    [
        (FaultKind.KILL_WORKER, "engine 1/worker 0", {"engine 1": 1}),
        (FaultKind.KILL_ENGINE, "engine 1", {"engine 1": 1}),
        (FaultKind.KILL_SUCCESSOR, "engine 1", {"engine 1": 2}),
        (FaultKind.STOP_FRONTEND, "frontend 1", {}),
        (FaultKind.STOP_ROOT, "root", {}),
        (FaultKind.RST, "", {}),
    ],
)
def test_places_and_deaths(kind: FaultKind, place: str, deaths: dict[str, int]) -> None:
    fault = Fault(
        number=0, kind=kind, rank=1, transport=Transport.SSE, script=0, token=0, seconds=0.0
    )
    assert (fault.place, fault.deaths) == (place, deaths)
    assert kind in KILLS | STOPS | DISCONNECTS
