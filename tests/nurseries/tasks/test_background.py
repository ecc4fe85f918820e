"""A background task has a name, a handle and a scope of its own."""

import gc
import weakref

import pytest
import trio

from triolet.nurseries.tasks.background import (
    CancelledBeforeStart,
    background_task_of,
    start_background_task,
    start_background_task_soon,
)


async def serve(value: str, *, task_status: trio.TaskStatus[str]) -> None:
    task_status.started(value)
    await trio.sleep_forever()


async def test_started_value_and_name_arrive() -> None:
    async with trio.open_nursery() as nursery:
        task = await start_background_task(nursery, serve, "ready", name="load-reports")
        assert (task.name, task.value, task.ended) == ("load-reports", "ready", False)
        assert task.task is not None
        assert task.task.name == "load-reports"
        assert background_task_of(task.task) is task
        task.cancel("enough")
        await task.wait_ended()
        assert task.ended
        assert task.cancel_called


async def test_cancelling_one_leaves_its_siblings_alone() -> None:
    async with trio.open_nursery() as nursery:
        first = await start_background_task(nursery, serve, "a", name="a")
        second = await start_background_task(nursery, serve, "b", name="b")
        first.cancel("only this one")
        await first.wait_ended()
        await trio.testing.wait_all_tasks_blocked()
        assert not second.ended
        second.cancel("over")


async def test_wait_ended_covers_the_cleanup() -> None:
    log: list[str] = []

    async def tidy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            log.append("tidied")

    async with trio.open_nursery() as nursery:
        task = start_background_task_soon(nursery, tidy, name="tidy")
        await trio.testing.wait_all_tasks_blocked()
        task.cancel("over")
        await task.wait_ended()
        log.append("waited")
    assert log == ["tidied", "waited"]


async def test_cancelled_before_its_first_step_it_never_works() -> None:
    async def work() -> None:
        await trio.lowlevel.checkpoint()
        raise AssertionError("it worked")

    async with trio.open_nursery() as nursery:
        task = start_background_task_soon(nursery, work, name="work")
        task.cancel("changed our mind")
    assert task.ended


async def test_an_error_ends_the_nursery_and_the_task() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="broken")):
        async with trio.open_nursery() as nursery:
            task = start_background_task_soon(nursery, fail, name="fail")
            await trio.sleep_forever()
    assert task.ended


async def test_an_error_before_started_is_raised_bare_by_the_start() -> None:
    async def fail(*, task_status: trio.TaskStatus[None]) -> None:
        raise ValueError("no start")

    async with trio.open_nursery() as nursery:
        with pytest.raises(ValueError, match="no start"):
            await start_background_task(nursery, fail, name="fail")


async def test_children_of_a_background_task_are_not_taken_for_it() -> None:
    async def parent(*, task_status: trio.TaskStatus[trio.lowlevel.Task]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            (child,) = nursery.child_tasks
            task_status.started(child)

    async with trio.open_nursery() as nursery:
        task = await start_background_task(nursery, parent, name="parent")
        await trio.testing.wait_all_tasks_blocked()
        assert background_task_of(task.value) is None
        task.cancel("over")


async def test_a_shielded_task_is_cancelled_by_its_handle_alone() -> None:
    with trio.CancelScope() as outside:
        async with trio.open_nursery() as nursery:
            task = await start_background_task(nursery, serve, "", name="shielded")
            task.shield()
            outside.cancel("everybody")
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                assert not task.ended
                task.cancel("you too")
                await task.wait_ended()


async def test_a_cancelled_task_takes_those_along_who_would_wait_for_it() -> None:
    async with trio.open_nursery() as nursery:
        handle = start_background_task_soon(
            nursery, trio.sleep_forever, name="one", takes_along=nursery.cancel_scope
        )
        nursery.start_soon(trio.sleep_forever)
        handle.cancel("the test cancels one")
    assert nursery.cancel_scope.cancelled_caught


async def test_a_task_that_ends_by_itself_takes_no_others_along() -> None:
    async with trio.open_nursery() as nursery:
        start_background_task_soon(
            nursery, trio.lowlevel.checkpoint, name="one", takes_along=nursery.cancel_scope
        )
    assert not nursery.cancel_scope.cancel_called


async def test_one_that_is_cancelled_before_it_started_is_named() -> None:
    async def never_start(*, task_status: trio.TaskStatus[None]) -> None:
        task = background_task_of(trio.lowlevel.current_task())
        assert task is not None
        task.cancel("too early")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        with pytest.raises(CancelledBeforeStart, match="writer was cancelled before it had"):
            await start_background_task(nursery, never_start, name="writer")


@pytest.mark.parametrize("waits_for", ["", "frames"])
async def test_an_ended_task_is_freed_without_the_collector(waits_for: str) -> None:
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            handle = await start_background_task(nursery, serve, "a", name="a", waits_for=waits_for)
            handle.cancel("over")
            await handle.wait_ended()
        assert handle.task is None
        gone = weakref.ref(handle)
        del handle
        await trio.lowlevel.checkpoint()
        assert gone() is None
    finally:
        gc.enable()
