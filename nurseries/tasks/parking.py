"""A place where one task waits until it is woken, again and again, as cheaply as trio allows.

`wait_task_rescheduled` makes three objects for each wait and an outcome for each wake-up, which is
a third of what a switch of tasks costs; on the way of a token that was more than the token itself.
So the order to sleep is made once, by trio's own function, and given to trio by every task that
parks; and all are woken with the same outcome. Must not know what is waited for.
"""

from collections.abc import Generator
from types import coroutine
from typing import Any

import attrs
from trio import BusyResourceError
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled


class _Woken:
    """The outcome of every wait that was not cancelled."""

    # All that trio may ask an outcome for. A type: calling one costs half of what a function does.
    unwrap = type(None)


_WOKEN: Any = _Woken()


def _order_to_sleep() -> object:
    """What trio is told by a task that sleeps and may be cancelled; it holds for any task.

    Nothing is to be undone when it is cancelled: that a task sleeps at a place is said by its
    `custom_sleep_data`, which trio clears whenever a task is woken, by whomever.
    """
    sleep = wait_task_rescheduled(lambda _: Abort.SUCCEEDED)  # noqa: ASYNC105  # begun by hand
    order = sleep.send(None)
    sleep.close()
    return order


_ORDER_TO_SLEEP = _order_to_sleep()


@attrs.define(eq=False)
class ParkingPlace:
    """Room for one sleeping task."""

    # Who slept here last; whether it still does, the task says.
    _task: Task | None = attrs.field(default=None, init=False)

    @property
    def is_taken(self) -> bool:
        """Whether a task sleeps here."""
        return self._task is not None and self._task.custom_sleep_data is self

    def order(self) -> object:
        """What the task in hand yields to trio at once, to sleep here; it then unwraps the answer.

        For generators that are waits themselves, which need not make another one to `park`. Raises
        `BusyResourceError` while another task sleeps here.
        """
        if self._task is not None and self._task.custom_sleep_data is self:
            raise BusyResourceError("another task sleeps here")
        task = self._task = current_task()
        task.custom_sleep_data = self
        return _ORDER_TO_SLEEP

    @coroutine
    def park(self) -> Generator[object, Any, None]:
        """Sleep until `wake`; raises as `order`.

        A checkpoint. Cancellation frees the place at once.
        """
        (yield self.order()).unwrap()  # without a name: an error would make a circle of it

    def wake(self, _: object = None) -> None:
        """Wake who sleeps here, if one does; it runs in the next turn of the loop.

        Whatever it is called with changes nothing: so it may be what somebody else calls.
        """
        task, self._task = self._task, None
        if task is not None and task.custom_sleep_data is self:
            reschedule(task, _WOKEN)
