"""Plan of kills at random: its seed decides it, and every tier has its share."""

import attrs
import pytest

from triolet.fuzz.chaos.kills.kill_plan import (
    AT_ONCE,
    LATER,
    PERIOD_S,
    SERVING,
    SPARED_RANK,
    Kill,
    Tier,
    count_by_kind,
    joined,
    make_kills,
    rest_of,
    tier_of,
    victims_of,
)

PLACES = [
    "root",
    "frontend 0",
    "frontend 1",
    "engine 0",
    "engine 0/worker 0",
    "engine 0/spare worker 0",
    "engine 1",
    "engine 1/worker 0",
    "spare engine 0",
    "spare engine 0/worker 0",
    "spare frontend 0",
    "fork server engine",
    "fork server frontend",
]


def test_a_seed_gives_the_same_kills_and_another_seed_others() -> None:
    assert make_kills(5, 60, ranks=2) == make_kills(5, 60, ranks=2)
    assert make_kills(5, 60, ranks=2) != make_kills(6, 60, ranks=2)


def test_as_many_processes_die_as_are_asked_for() -> None:
    kills = make_kills(1, 10_000, ranks=2)
    assert 10_000 <= sum(len(kill.tiers) for kill in kills) < 10_000 + max(AT_ONCE)
    assert {len(kill.tiers) for kill in kills} == set(AT_ONCE)
    assert {tier for kill in kills for tier in kill.tiers} == set(Tier)
    assert sum(kill.wait_s for kill in kills) / len(kills) == pytest.approx(PERIOD_S, rel=0.1)


def test_no_more_of_a_tier_die_at_once_than_there_are() -> None:
    for kill in make_kills(1, 4000, ranks=2):
        engines = kill.tiers.count(Tier.ENGINE)
        assert engines <= (2 if kill.spared is None else 1)
        assert kill.tiers.count(Tier.SPARE_ENGINE) <= 1


def test_one_of_each_tier_lives_through_the_first_half_and_none_through_the_second() -> None:
    kills = make_kills(1, 4000, ranks=2)
    quarters = [kills[len(kills) * part // 8].spared for part in (1, 3, 5, 7)]
    assert quarters == [SPARED_RANK, SPARED_RANK, None, None]
    assert {kill.spared for kill in make_kills(1, 100, ranks=1)} == {None}


@pytest.mark.parametrize(
    ("place", "tier"),
    [
        ("root", None),
        ("frontend 1", Tier.FRONTEND),
        ("engine 0/worker 1", Tier.WORKER),
        ("engine 0/spare worker 0", Tier.SPARE_WORKER),
        ("spare engine 0", Tier.SPARE_ENGINE),
        ("spare engine 0/worker 0", Tier.SPARE_WORKER),
        ("spare frontend 0", Tier.SPARE_FRONTEND),
        ("fork server frontend", Tier.FORK_SERVER),
    ],
)
def test_the_tier_of_a_place(place: str, tier: Tier | None) -> None:
    assert tier_of(place) is tier


KILL = Kill(number=0, tiers=(Tier.ENGINE, Tier.ENGINE), draws=(0.9, 0.9), wait_s=0.0)


def test_several_of_a_tier_are_several_processes() -> None:
    assert victims_of(KILL, PLACES) == ["engine 1", "engine 0"]
    assert victims_of(KILL, ["engine 0", "root"]) == ["engine 0"]
    assert victims_of(KILL, ["root"]) == []


def test_who_is_spared_lives() -> None:
    assert victims_of(attrs.evolve(KILL, spared=1), PLACES) == ["engine 0"]


def test_what_was_not_there_dies_later_with_the_rest_of_others() -> None:
    tiers = (Tier.ENGINE, Tier.SPARE_ENGINE, Tier.SPARE_WORKER)
    kill = Kill(number=3, tiers=tiers, draws=(0.9, 0.5, 0.1), wait_s=0.0)
    victims = victims_of(kill, ["engine 0", "root", "spare engine 0"])
    (rest,) = rest_of(kill, victims)
    assert (rest.tiers, rest.draws) == ((Tier.SPARE_WORKER,), (0.1,))
    assert rest_of(rest, ["engine 0/spare worker 0"]) == []
    later, (left,) = joined([rest, KILL])
    assert (later.tiers, later.kind) == ((Tier.SPARE_WORKER, Tier.ENGINE), LATER)
    assert left.tiers == (Tier.ENGINE,), "of a spare engine, there would be no two at once"
    assert rest_of(later, victims_of(later, PLACES)) == []


def test_spares_die_now_and_then() -> None:
    kills = make_kills(1, 10_000, ranks=2)
    spares = [tier for kill in kills for tier in kill.tiers if tier not in SERVING]
    assert 100 < len(spares) < 1000


def test_rows_of_the_report_are_single_tiers_and_several_at_once() -> None:
    counts = count_by_kind(make_kills(1, 1000, ranks=2))
    assert list(counts)[-2:] == ["kill 4 at once", "kill 5 at once"]
    assert set(counts) >= {"kill engine", "kill frontend"}
