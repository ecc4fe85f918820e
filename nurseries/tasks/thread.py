"""Thread owned by a task: stopped when the task is cancelled, and joined before the task ends.

A wait for a thread does not notice a cancellation, so a helper of the same task does.
"""

from collections.abc import Callable
from typing import NoReturn

import trio


async def run_thread(
    main: Callable[[], object], *, stop: Callable[[], None], name: str
) -> NoReturn:
    """Run `main` in a thread called `name`, as a part of the calling task.

    Never returns unless cancelled, even if `main` does; then `stop` is called, upon which `main`
    must return soon, and the thread is joined. Raises, in a group, what `main` raises.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_when_cancelled, stop)
        # A limiter of its own: a thread that lives as long as this takes no other's place.
        await trio.to_thread.run_sync(
            main, abandon_on_cancel=False, limiter=trio.CapacityLimiter(1), thread_name=name
        )
    raise AssertionError("the helper does not return")


async def _stop_when_cancelled(stop: Callable[[], None]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop()
