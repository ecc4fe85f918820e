"""A bell for one task that waits: rung at most once for each time that it looks.

An event that is made anew for every wake-up costs more than all else on the way of a token, so the
waiting task parks itself. Must not know what there is to look at.
"""

import attrs
from trio.lowlevel import Abort, Task, checkpoint, current_task, reschedule, wait_task_rescheduled


class _Nothing:
    """What a parked task is woken with.

    One for all: trio would make an outcome for each wake-up, which is a quarter of its cost.
    """

    def unwrap(self) -> None:
        """All that trio asks for, in the woken task."""


_NOTHING = _Nothing()


def wake(task: Task) -> None:
    """Wake a task that parked itself with `wait_task_rescheduled`; it gets None."""
    reschedule(task, _NOTHING)  # type: ignore[arg-type]  # it has what is asked for


@attrs.define(eq=False)
class Doorbell:
    """See above. A ring while nobody waits is kept for the next wait; several are one."""

    _is_rung: bool = attrs.field(default=False, init=False)
    _waiter: Task | None = attrs.field(default=None, init=False)

    def ring(self) -> None:
        """There is something to look at."""
        self._is_rung = True
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            wake(waiter)

    async def wait(self) -> None:
        """Return when it was rung since the last wait; one task at a time.

        A checkpoint in every case. Cancellation loses no ring.
        """
        assert self._waiter is None, "one task waits at a bell"
        if self._is_rung:
            await checkpoint()
        else:
            self._waiter = current_task()
            await wait_task_rescheduled(self._stop_waiting)
        self._is_rung = False

    def _stop_waiting(self, _: object) -> Abort:
        self._waiter = None
        return Abort.SUCCEEDED
