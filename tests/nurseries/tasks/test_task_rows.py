"""Rows of tasks: crowds folded, helpers with their starters, the same when nothing is new."""

import pytest
import trio
import trio.testing

from triolet.nurseries.tasks.background import (
    start_background_task,
    start_background_task_soon,
    waiting_for,
)
from triolet.nurseries.tasks.task_rows import TaskRow, TaskRows, rows_of, unix_s
from triolet.nurseries.tasks.task_tree import SIBLINGS_SHOWN_MAX, TaskNode, task_tree


async def wait_for_tea(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    task_status.started()
    with waiting_for("tea"):
        await trio.sleep_forever()


async def through_helper(*, task_status: trio.TaskStatus[None]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_tea)  # a helper without a name
        nursery.start_soon(trio.sleep_forever, name="thread")
        task_status.started()


def below(rows: list[TaskRow], name: str) -> list[TaskRow]:
    """The row of this name and those of its children, as if it was on top."""
    (first,) = (place for place, row in enumerate(rows) if row[1] == name)
    depth, found = rows[first][0], [rows[first]]
    for row in rows[first + 1 :]:
        if row[0] <= depth:
            break
        found.append(row)
    return [(row[0] - depth, *row[1:]) for row in found]


async def test_a_row_says_what_a_task_waits_for_and_since_when(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rows = TaskRows()
    began_ms = unix_s() * 1000
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, wait_for_tea, name="guest")
        await trio.sleep(0.5)
        assert below(rows.look(), "guest") == [(0, "guest", "tea", None, 1, None)]
        await trio.sleep(5)
        ((_, _, _, since, _, _),) = below(rows.look(), "guest")
        assert since == pytest.approx(began_ms, abs=1000)
        await trio.sleep(5)
        assert below(rows.look(), "guest")[0][3] == since
        nursery.cancel_scope.cancel("seen")


async def wait_in_time() -> None:
    with trio.move_on_after(20), waiting_for("tea"):
        await trio.sleep_forever()


async def test_a_row_has_the_deadline_of_a_long_wait_or_the_reason_of_its_cancellation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rows, began_ms = TaskRows(), unix_s() * 1000
    async with trio.open_nursery() as nursery:
        guest = start_background_task_soon(nursery, wait_in_time, name="guest")
        await trio.sleep(0.5)
        assert below(rows.look(), "guest")[0][5] is None
        await trio.sleep(5)
        end = below(rows.look(), "guest")[0][5]
        assert end == pytest.approx(began_ms + 20_000, abs=1000)
        await trio.sleep(5)
        assert below(rows.look(), "guest")[0][5] == end
        assert below(rows_of(task_tree(), unix_s()), "guest")[0][5] is not None
        guest.cancel("it is late")
        assert below(rows.look(), "guest")[0][5] == "it is late"
        assert below(rows_of(task_tree(), unix_s()), "guest")[0][5] == "it is late"


async def test_a_crowd_is_one_row_and_its_children_none() -> None:
    rows = TaskRows()
    async with trio.open_nursery() as nursery:
        for number in range(SIBLINGS_SHOWN_MAX + 1):
            await start_background_task(nursery, through_helper, name=f"request {number}")
        await trio.testing.wait_all_tasks_blocked()
        requests = [row for row in rows.look() if row[1].startswith("request")]
        assert [row[1:] for row in requests] == [
            ("request", None, None, SIBLINGS_SHOWN_MAX + 1, None)
        ]
        assert "thread" not in [row[1] for row in rows.look()]
        assert rows.look() == rows_of(task_tree(), unix_s())
        nursery.cancel_scope.cancel("seen")


async def test_a_helper_is_part_of_its_starter() -> None:
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, through_helper, name="helped")
        await trio.testing.wait_all_tasks_blocked()
        expected = [(0, "helped", "tea", None, 1, None), (1, "thread", None, None, 1, None)]
        assert below(TaskRows().look(), "helped") == expected
        assert below(rows_of(task_tree(), unix_s()), "helped") == expected
        nursery.cancel_scope.cancel("seen")


def test_rows_of_another_process_have_times_of_this_one() -> None:
    bound = TaskNode("a", "waiting", "b", 5.0, deadline_s=7.0)
    ended = TaskNode("c", "waiting", "d", 0.5, deadline_s=7.0, cancelled="enough")
    assert rows_of(TaskNode("", "parked", children=[bound, ended]), 1000.0) == [
        (0, "a", "b", 995_000, 1, 1_007_000),
        (0, "c", "d", None, 1, "enough"),
    ]
