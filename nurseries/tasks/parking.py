"""Hot path: `ParkingPlace` and `Doorbell`, waits of one task that are as cheap as trio allows.

A `ParkingPlace` holds one sleeping task until it is woken; a `Doorbell` keeps a ring for a wait
that comes later. `wait_task_rescheduled` makes three objects for each wait and an outcome for each
wake-up. Here the order to sleep is made once, by trio's own function, and given to trio by every
task that parks; and all are woken with the same outcome. What pays for it (`triolet.bench
frontend`, best of 40 rounds each, in turns, one token of a stream in lockstep): 3.9 µs of CPU at
128 streams and 5.2 at 32; with `wait_task_rescheduled` in its place 5.5 and 6.8.

That one order may be given again is not promised by trio: it is done with versions that were tried,
and with a newer one each wait gets its own, as `wait_task_rescheduled` does.
"""

from collections.abc import Generator
from types import coroutine
from typing import Any

import attrs
import trio
from trio import BusyResourceError
from trio.lowlevel import (
    Abort,
    Task,
    checkpoint,
    current_task,
    reschedule,
    wait_task_rescheduled,
)

# The newest trio that `tests/nurseries/tasks/test_parking.py` has passed with.
TRIO_TRIED = (0, 35)


class _Woken:
    """The outcome of every wait that was not cancelled."""

    # The outcome needs nothing else. A type: calling one costs half of what a function does.
    unwrap = type(None)


_WOKEN: Any = _Woken()


def _order_to_sleep() -> object:
    """The object that a cancellable sleeping task yields to trio; one serves all tasks.

    Nothing is to be undone when it is cancelled: that a task sleeps at a place is said by its
    `custom_sleep_data`, which trio clears whenever a task is rescheduled.
    """
    sleep = wait_task_rescheduled(lambda _: Abort.SUCCEEDED)  # noqa: ASYNC105  # begun by hand
    order = sleep.send(None)
    sleep.close()
    return order


_is_tried = tuple(map(int, trio.__version__.split(".")[:2])) <= TRIO_TRIED
_SHARED_ORDER = _order_to_sleep() if _is_tried else None


@attrs.define(eq=False)
class ParkingPlace:
    """Room for one sleeping task."""

    # The task that slept here last; its `custom_sleep_data` says whether it still does.
    _task: Task | None = attrs.field(default=None, init=False)

    @property
    def is_taken(self) -> bool:
        """Whether a task sleeps here."""
        return self._task is not None and self._task.custom_sleep_data is self

    def order(self) -> object:
        """The object to yield to trio at once to sleep here; the task then unwraps the answer.

        For generators that are waits themselves, which need not make another one to `park`. Raises
        `BusyResourceError` while another task sleeps here.
        """
        if self._task is not None and self._task.custom_sleep_data is self:
            raise BusyResourceError("another task sleeps here")
        task = self._task = current_task()
        task.custom_sleep_data = self
        return _SHARED_ORDER or _order_to_sleep()

    @coroutine
    def park(self) -> Generator[object, Any, None]:
        """Sleep until `wake`; raises as `order`.

        A checkpoint. Cancellation frees the place at once.
        """
        (yield self.order()).unwrap()  # without a name: an error would make a circle of it

    def wake(self, _: object = None) -> None:
        """Wake the task that sleeps here, if one does; it runs in the next turn of the loop.

        The argument is ignored, so that this may be used as a callback.
        """
        task, self._task = self._task, None
        if task is not None and task.custom_sleep_data is self:
            reschedule(task, _WOKEN)


@attrs.define(eq=False)
class Doorbell:
    """Reusable event for one waiting task: set by `ring`, cleared by the wait that it ends.

    A ring without a waiter is kept for the next wait; several are one.
    """

    _is_rung: bool = attrs.field(default=False, init=False)
    _place: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)

    def ring(self) -> None:
        """Wake the task that waits, or end the next wait at once."""
        if not self._is_rung:
            self._is_rung = True
            self._place.wake()

    def clear(self) -> None:
        """Forget a ring: what it was rung for is dealt with."""
        self._is_rung = False

    async def wait(self) -> None:
        """Return when it was rung since the last wait; one task at a time.

        A checkpoint in every case. Cancellation loses no ring.
        """
        assert not self._place.is_taken, "one task waits at a bell"
        if self._is_rung:
            await checkpoint()
        else:
            await self._place.park()
        self._is_rung = False
