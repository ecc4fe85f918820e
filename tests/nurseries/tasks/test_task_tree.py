"""The live tree shows every task once and what it waits for, and folds crowds."""

import attrs
import pytest
import trio

from triolet.nurseries.tasks.background import (
    always_waits_for,
    start_background_task,
    wait_of,
    waiting_for,
)
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import (
    ProcessTree,
    TaskKind,
    TaskNode,
    render_tree,
    task_tree,
)
from triolet.tests.live_tasks import find_tasks


async def wait_for_tea(*, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    with waiting_for("tea"):
        await trio.sleep_forever()


async def test_the_tree_names_each_task_and_its_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, wait_for_tea, name="guest")
        await trio.sleep(5)
        (node,) = find_tasks(task_tree(), "guest")
        assert node.since_s == pytest.approx(5.0)
        assert attrs.evolve(node, since_s=0.0) == TaskNode(
            "guest", "waiting", "tea", kind=TaskKind.BACKGROUND
        )
        (here,) = find_tasks(task_tree(), trio.lowlevel.current_task().name)
        assert here.state == "running"
        assert [child.name for child in here.children] == ["guest"]
        nursery.cancel_scope.cancel("seen")


async def wait_in_time(*, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    with trio.move_on_after(20), waiting_for("tea"):
        await trio.sleep_forever()


async def clean_up(*, task_status: trio.TaskStatus[None]) -> None:
    task_status.started()
    try:
        with trio.move_on_after(20):  # cancelled from further out: its deadline says nothing
            await trio.sleep_forever()
    finally:
        with trio.move_on_after(2, shield=True):
            await trio.sleep_forever()


async def test_a_task_has_the_deadline_and_the_cancellation_of_its_own_scopes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with trio.fail_after(1000):  # of the task above: not said again by each below it
        async with open_service(wait_in_time, name="service"), trio.open_nursery() as nursery:
            await start_background_task(nursery, wait_in_time, name="guest")
            late = await start_background_task(nursery, clean_up, name="late")
            nursery.start_soon(trio.sleep_forever, name="part")
            await trio.sleep(5)
            late.cancel("it is late")
            await trio.testing.wait_all_tasks_blocked()
            found = {
                name: find_tasks(task_tree(), name)[0]
                for name in ("service", "guest", "late", "part")
            }
            nursery.cancel_scope.cancel("seen")
    lines = render_tree(ProcessTree("root", 1, tasks=parked("<init>", *found.values())))
    assert lines[1:] == [
        "├─ service  waiting 5.0 s for tea  [deadline in 15.0 s]  [until its users end]",
        "├─ guest  waiting 5.0 s for tea  [deadline in 15.0 s]",
        "├─ late  [cancelled: it is late]  [deadline in 2.0 s]",
        "└─ part",
    ]
    assert [node.kind for node in found.values()] == ["service", "background", "background", "part"]


async def test_a_parked_task_has_said_nothing() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever, name="mute")
        await trio.testing.wait_all_tasks_blocked()
        (node,) = find_tasks(task_tree(), "mute")
        assert (node.state, node.waiting_for, node.since_s) == ("parked", None, 0.0)
        nursery.cancel_scope.cancel("seen")


def test_outside_of_trio_there_is_no_tree() -> None:
    with pytest.raises(RuntimeError):
        task_tree()


async def test_trios_own_task_is_left_out() -> None:
    def names(node: TaskNode) -> set[str]:
        return {node.name}.union(*map(names, node.children))

    root = trio.lowlevel.current_root_task()
    assert root is not None
    living = {task.name for nursery in root.child_nurseries for task in nursery.child_tasks}
    assert living - names(task_tree()) == {"<TrioToken.run_sync_soon task>"}


async def help_out(*, task_status: trio.TaskStatus[None]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)  # a helper without a name
        nursery.start_soon(trio.sleep_forever, name="thread")
        task_status.started()


async def test_a_task_without_a_name_is_shown_as_part_of_the_one_that_started_it() -> None:
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, help_out, name="helped")
        await trio.testing.wait_all_tasks_blocked()
        (tasks,) = find_tasks(task_tree(), trio.lowlevel.current_task().name)
        assert render_tree(ProcessTree("engine 0", 1, tasks=tasks))[1:] == [
            "└─ helped",
            "   └─ thread",
        ]
        nursery.cancel_scope.cancel("seen")


def parked(name: str, *children: TaskNode) -> TaskNode:
    return TaskNode(name, "parked", children=list(children))


def test_rendering() -> None:
    requests = [parked(f"request {number:x}", parked("writer")) for number in range(128)]
    handler = TaskNode("output-handler", "waiting", "a message", 1.25)
    main = parked("<init>", parked("main", handler, *requests), parked("death-monitor"))
    engine = ProcessTree("engine 0", 12, {"restarts": 1}, None, [ProcessTree("worker 0", 13)])
    assert render_tree(ProcessTree("root", 11, {}, main, [engine])) == [
        "root (pid 11)",
        "├─ main",
        "│  ├─ output-handler  waiting 1.2 s for a message",
        "│  └─ request × 128",
        "├─ death-monitor",
        "└─ engine 0 (pid 12)  restarts 1",
        "   └─ worker 0 (pid 13)",
    ]


def test_a_helper_lends_its_wait_to_a_task_that_says_nothing() -> None:
    helper = TaskNode("house.room.Thing._wait.<locals>.one", "waiting", "death", 3.0, [parked("x")])
    mute, talker = parked("mute", helper), TaskNode("talker", "waiting", "tea", 1.0, [helper])
    main = TaskNode("house.main", "waiting", "an engine", 2.0, [mute, talker])
    assert render_tree(ProcessTree("root", 1, {"run": 7}, parked("<init>", main))) == [
        "root (pid 1)  run 7  waiting 2.0 s for an engine",
        "├─ mute  waiting 3.0 s for death",
        "│  └─ x",
        "└─ talker  waiting 1.0 s for tea",
        "   └─ x",
    ]


@pytest.mark.parametrize(
    ("since_s", "words"),
    [
        (0.0, "waiting for tea"),
        (0.04, "waiting for tea"),
        (0.06, "waiting 0.1 s for tea"),
        (99.0, "waiting 99.0 s for tea"),
        (100.0, "waiting 2 min for tea"),
        (5400.0, "waiting 90 min for tea"),
        (9000.0, "waiting 2.5 h for tea"),
    ],
)
def test_how_long_is_said_as_people_say_it(since_s: float, words: str) -> None:
    tasks = parked("<init>", TaskNode("guest", "waiting", "tea", since_s))
    assert render_tree(ProcessTree("root", 1, tasks=tasks))[1] == f"└─ guest  {words}"


@pytest.mark.parametrize(("count", "lines"), [(4, 4), (5, 1)])
def test_few_siblings_are_shown_and_many_folded(count: int, lines: int) -> None:
    tasks = parked("<init>", *(parked(f"worker-{number}") for number in range(count)))
    rendered = render_tree(ProcessTree("engine 0", 1, {}, tasks))
    assert len(rendered) == 1 + lines
    assert ("worker × 5" in rendered[1]) == (lines == 1)


def what_of(task: trio.lowlevel.Task) -> str | None:
    wait = wait_of(task)
    return None if wait is None else wait.what


async def test_waits_nest_and_end_with_their_blocks() -> None:
    task = trio.lowlevel.current_task()
    assert what_of(task) is None
    with waiting_for("engine 0"):
        with waiting_for("its first step"):
            assert what_of(task) == "its first step"
            wait = wait_of(task)
            assert wait is not None
            assert wait.outer is not None
            assert wait.outer.what == "engine 0"
        assert what_of(task) == "engine 0"
    assert what_of(task) is None


async def test_a_child_does_not_wait_for_what_its_parent_waits_for() -> None:
    with waiting_for("the parent's thing"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            (child,) = nursery.child_tasks
            await trio.testing.wait_all_tasks_blocked()
            assert what_of(child) is None
            nursery.cancel_scope.cancel("seen")


async def test_what_a_task_always_waits_for_is_seen_between_its_other_waits() -> None:
    task = trio.lowlevel.current_task()
    always_waits_for("frames")
    with waiting_for("tea"):
        assert what_of(task) == "tea"
    assert what_of(task) == "frames"
    wait = wait_of(task)
    assert wait is not None
    assert wait.began_s is None


async def test_an_error_ends_the_mark() -> None:
    with pytest.raises(ValueError, match="late"), waiting_for("it"):
        raise ValueError("late")
    assert what_of(trio.lowlevel.current_task()) is None
