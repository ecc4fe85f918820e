"""Plan of a storm, judgement of its spawns, and samples of lives."""

import os

import attrs
import pytest
import trio

from triolet.fuzz.chaos.report.growth import SAMPLES_MIN
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode, task_tree

from .kill_plan import (
    AT_ONCE,
    LATER,
    PERIOD_S,
    SPARED_RANK,
    Kill,
    Tier,
    joined,
    make_kills,
    rest_of,
    victims_of,
)
from .lives import Lives, memory_bytes, tasks_of
from .storm import is_up, judge_spawns

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


def test_as_many_die_as_are_asked_for_of_every_tier_and_a_seed_decides_who() -> None:
    kills = make_kills(1, 10_000, ranks=2)
    assert kills == make_kills(1, 10_000, ranks=2) != make_kills(2, 10_000, ranks=2)
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


KILL = Kill(number=0, tiers=(Tier.ENGINE, Tier.ENGINE), draws=(0.9, 0.9), wait_s=0.0)


def test_several_of_a_tier_are_several_processes_but_for_the_spared() -> None:
    assert victims_of(KILL, PLACES) == ["engine 1", "engine 0"]
    assert victims_of(KILL, ["engine 0", "root"]) == ["engine 0"]
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


BEFORE = {"engine 0": 3, "frontend 0": 4}


@pytest.mark.parametrize(
    ("top", "lives", "others", "found"),
    [
        (4, 0, 0, []),
        (7, 3, 0, []),
        (8, 3, 1, []),  # a spare that was a successor by then
        (6, 3, 0, ["I10"]),  # one came back without a number of its own
        (9, 3, 1, ["I10"]),  # one died that was not killed
    ],
)
def test_each_death_takes_one_spawn(top: int, lives: int, others: int, found: list[str]) -> None:
    violations = judge_spawns(BEFORE, {"engine 0": top, "frontend 0": 4}, lives, others)
    assert [each.invariant for each in violations] == found


def test_a_process_that_boots_is_not_up() -> None:
    assert is_up(ProcessTree("engine 0", 1, {"epoch": 3}))
    assert not is_up(ProcessTree("engine 0", 1, {"phase": "start", "done": "10%"}))
    assert not is_up(ProcessTree("engine 0", 1, {"state": "does not answer"}))


async def test_samples_are_of_those_that_live_on() -> None:
    lives, tasks = Lives(), task_tree()
    assert tasks_of(tasks) == 1 + sum(map(tasks_of, tasks.children))
    me = ProcessTree("root", os.getpid(), {}, tasks)
    other = ProcessTree("engine 0", os.getpid(), {}, TaskNode("main", "parked"))
    mute = ProcessTree("spare engine 0", os.getpid(), {})
    for number in range(SAMPLES_MIN):
        found = {"root": me, "spare engine 0": mute}
        lives.take(found if number else {**found, "engine 0": other}, trio.current_time())
    (growth,) = lives.growths()
    assert growth.process == f"root (pid {os.getpid()})"
    assert growth.mib > 1


def test_what_is_gone_has_no_memory() -> None:
    assert memory_bytes(2**22 + 1) == 0
