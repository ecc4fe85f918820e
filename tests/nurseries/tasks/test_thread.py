"""A task's thread is stopped and joined when the task is cancelled, and fails with it."""

import queue
import threading
from functools import partial

import pytest
import trio

from triolet.nurseries.tasks.service import single_errors_unwrapped
from triolet.nurseries.tasks.thread import run_thread


async def test_a_cancelled_task_stops_and_joins_its_thread() -> None:
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    seen: list[str] = []

    def main() -> None:
        seen.append(threading.current_thread().name)
        while (order := orders.get()) != "stop":
            seen.append(order)

    async with trio.open_nursery() as nursery:
        run = partial(run_thread, main, stop=lambda: orders.put("stop"), name="worker")
        nursery.start_soon(run)
        orders.put("compute")
        orders.put("compute again")
        while len(seen) < 3:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel("seen")
        orders.put("compute the last")
    assert seen == [
        "worker",
        "compute",
        "compute again",
        "compute the last",
    ]


async def test_a_thread_that_ends_by_itself_leaves_its_task_to_be_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    stops: list[str] = []
    with trio.move_on_after(5) as patience:
        await run_thread(lambda: None, stop=lambda: stops.append("stop"), name="short")
    assert patience.cancelled_caught
    assert stops == ["stop"]


async def test_what_the_thread_raises_is_raised() -> None:
    def main() -> None:
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"), single_errors_unwrapped():
        await run_thread(main, stop=lambda: None, name="failing")


async def test_a_task_that_is_cancelled_already_starts_no_thread() -> None:
    started: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel("before")
        await run_thread(lambda: started.append("thread"), stop=lambda: None, name="late")
    assert scope.cancelled_caught
    assert started == []
