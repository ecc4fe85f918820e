"""Cancels a background task by its handle, found by name in the live tree, at its n-th step.

For n = 1, 2, … until a use of the process ends without reaching it; of later steps some are left
out, unless every one is asked for. A use is a main function in
this process with the test as its parent or as its children; afterwards nothing of it may be left.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from triolet.nurseries.tasks.background import (
    BackgroundTask,
    CancelledBeforeStart,
    background_task_of,
)
from triolet.nurseries.tasks.service import ServiceEnded, single_error
from triolet.tests.leaks import check_no_leaks
from triolet.tests.live_tasks import find_background_tasks

# A use that is not over by then hangs.
DEADLINE_S = 60.0
# A use that takes one task so many steps is too long, or never ends.
STEPS_MAX: Final = 400
# Steps that are tried where not every one is: the farther from the beginning, the fewer.
SOME_STEPS: Final = (
    *range(1, 7), 8, 11, 15, 20, 27, 36, 48, 64, 85, 113, 150, 200, 280, STEPS_MAX
)  # fmt: skip
# What is checked after each cancellation.
INVARIANTS = "ended with its cause, no task, thread, fd, socket or process left"


@attrs.frozen
class MainEnded(Exception):
    """A main function ended without an order; its process would exit with `code`."""

    code: int


@attrs.define(eq=False)
class CancelAtStep(trio.abc.Instrument):
    """Cancels the task called `name` when it has yielded `steps_left` times since its birth.

    `end` counts from the end of the tree: 0 is the outermost of that name, -1 the innermost.
    """

    name: str
    steps_left: int
    end: int = 0
    # Whether the task's end is to end the use.
    fatal: bool = True
    # Whether it was cancelled; and whether the use is over, so that its end is no matter of ours.
    reached: bool = attrs.field(default=False, init=False)
    over: bool = attrs.field(default=False, init=False)
    # Whether the use is not yet where steps count.
    held: bool = attrs.field(default=False, init=False)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Counts a step of ours; called by trio."""
        if task.name != self.name or self.reached or self.over or self.held:
            return
        handle = background_task_of(task)
        if handle is None or handle.ended or handle.cancel_called or not self._is_ours(handle):
            return
        self.steps_left -= 1
        if self.steps_left == 0:
            self.reached = True
            handle.cancel("the step of this test")

    def _is_ours(self, handle: BackgroundTask) -> bool:
        return find_background_tasks(self.name)[self.end] is handle

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Count for the length of the block."""
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)

    async def play(self, part: Callable[[], Awaitable[object]]) -> None:
        """Play the part of the other side, which ends the use in order if it comes to its end.

        Once we have cancelled, it is the main function that must end; the deadline tells if not.
        """
        try:
            await part()
        except Exception:
            if not self.reached:
                raise
        await self.finish()

    async def finish(self) -> None:
        """The use comes to its end here, unless a cancelled task is to end it."""
        if self.reached and self.fatal:
            await trio.sleep_forever()
        self.over = True


Use = Callable[[CancelAtStep], Awaitable[object]]
# The use of a cancelled task may end with such an error. None for an end in order.
Ending = Callable[[Exception, str], bool]


def with_its_name(error: Exception, name: str) -> bool:
    """The error is of the very task."""
    return repr(error) in (repr(ServiceEnded(name)), repr(CancelledBeforeStart(name)))


async def count_steps(reaches: Callable[[int], Awaitable[bool]], *, every: bool) -> int:
    """How many steps were reached, of every one or of some, until one was not."""
    for reached, n in enumerate(range(1, STEPS_MAX + 1) if every else SOME_STEPS):
        if not await reaches(n):
            return reached
    raise AssertionError("the use under test never ends")


async def cancel_at_each_step(
    name: str,
    use: Use,
    *,
    end: int = 0,
    ending: Ending | None = with_its_name,
    steps_max: int = STEPS_MAX,
    every: bool,
) -> int:
    """Returns the number of checkpoints reached; stops after `steps_max`, else at a use's end."""

    async def reaches(n: int) -> bool:
        steps = CancelAtStep(name, n, end, fatal=ending is not None)
        return n <= steps_max and await _cancel_once(steps, use, ending)

    return await count_steps(reaches, every=every)


async def _cancel_once(steps: CancelAtStep, use: Use, ending: Ending | None) -> bool:
    error: Exception | None = None
    with check_no_leaks(), trio.fail_after(DEADLINE_S), steps.acting():
        try:
            await use(steps)
        except Exception as raised:
            bare = single_error(raised)
            if not steps.reached or not isinstance(bare, Exception):
                raise
            error = bare
    if steps.reached:
        if ending is None:
            ended_well = error is None
        else:
            ended_well = error is not None and ending(error, steps.name)
        assert ended_well, f"{steps.name} was cancelled, and the end was: {error!r}"
    left = find_background_tasks()
    assert left == [], f"still living: {left}"
    return steps.reached
