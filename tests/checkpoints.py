"""Cancels an async function at its n-th checkpoint, for n = 1, 2, … until a run is through.

SQLite's loop over the n-th malloc, over trio's checkpoints: every place at which a task can be
cancelled is one at which it must leave everything whole. For tests of any room.
"""

from collections.abc import Awaitable, Callable
from itertools import count

import trio

# A test that needs more is testing too much at once, or never ends.
CHECKPOINTS_MAX = 1000


class StepCounter(trio.abc.Instrument):
    """Calls `action` after the n-th step of the tasks below `root`, when the task has yielded."""

    def __init__(self, root: trio.lowlevel.Task, n: int, action: Callable[[], None]) -> None:
        self.root = root
        self.steps_left = n
        self.action = action

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._is_below_root(task):
            return
        self.steps_left -= 1
        if self.steps_left == 0:
            self.action()

    def _is_below_root(self, task: trio.lowlevel.Task) -> bool:
        ancestor: trio.lowlevel.Task | None = task
        while ancestor is not None and ancestor is not self.root:
            nursery = ancestor.parent_nursery
            ancestor = nursery.parent_task if nursery is not None else None
        return ancestor is self.root


async def act_at_nth_checkpoint(
    async_fn: Callable[[], Awaitable[object]], n: int, action: Callable[[], None]
) -> bool:
    """Run `async_fn()` and call `action()` when it or a task below it has yielded n times.

    Returns whether it came to that. `action` must not block.
    """

    async def run() -> None:
        counter = StepCounter(trio.lowlevel.current_task(), n, action)
        trio.lowlevel.add_instrument(counter)
        try:
            await async_fn()
        finally:
            trio.lowlevel.remove_instrument(counter)
        reached.append(counter.steps_left <= 0)

    reached: list[bool] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, name="acted upon")
    return reached[0]


async def cancel_at_nth_checkpoint(async_fn: Callable[[], Awaitable[object]], n: int) -> bool:
    """Run `async_fn()`, cancelled at its n-th checkpoint; return whether it came to that.

    Checkpoints of all tasks below are counted. What `async_fn` raises comes through, in a group.
    """
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await async_fn()

    return await act_at_nth_checkpoint(run, n, lambda: scope.cancel(f"checkpoint {n} of the test"))


async def cancel_at_every_checkpoint(
    async_fn: Callable[[], Awaitable[object]], check: Callable[[], object] = lambda: None
) -> int:
    """`cancel_at_nth_checkpoint` for n = 1, 2, …, until a run is through; `check()` after each.

    Returns the number of checkpoints. `async_fn` must end by itself and can be run repeatedly.
    """
    for n in count(1):
        assert n <= CHECKPOINTS_MAX, "the function under test never ends"
        reached = await cancel_at_nth_checkpoint(async_fn, n)
        check()
        if not reached:
            return n - 1
    raise AssertionError("unreachable")
