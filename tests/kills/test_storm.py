"""Plan of a storm, judgement of its spawns, and samples of lives."""

import os

import pytest
import trio

from triolet.fuzz.chaos.report.growth import SAMPLES_MIN
from triolet.fuzz.chaos.served_run import is_up
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode, task_tree

from .lives import Lives, tasks_of
from .storm import judge_spawns

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
