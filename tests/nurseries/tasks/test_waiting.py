"""A wait is marked in its own task, nests, and is gone when the block is left."""

import pytest
import trio

from triolet.nurseries.tasks.waiting import always_waits_for, wait_of, waiting_for


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


async def test_the_beginning_is_on_trios_clock(autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(3)
    with waiting_for("tea"):
        began_s = trio.current_time()
        await trio.sleep(180)
        wait = wait_of(trio.lowlevel.current_task())
        assert wait is not None
        assert wait.began_s == began_s


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
