"""Waiting for what only the kernel or a server knows: looked at again and again, with an end."""

import inspect
from collections.abc import Awaitable, Callable

import attrs
import trio

# Between two looks at a condition.
LOOK_S = 0.02
# The time is waited for in so many parts: a machine that stands still uses up one of them.
PARTS = 2

Condition = Callable[[], bool | Awaitable[bool]]


@attrs.frozen
class NotInTime(Exception):
    """Something that must come to pass did not: `what`, within `seconds`."""

    what: str
    seconds: float

    def __str__(self) -> str:
        return f"within {self.seconds:g} s it did not come to pass: {self.what}"


async def wait_until(
    condition: Condition, what: str, *, seconds: float, look_s: float = LOOK_S
) -> float:
    """Return the seconds that it took until the condition held. Raises `NotInTime`."""
    began_s = trio.current_time()
    for _ in range(PARTS):
        with trio.move_on_after(seconds / PARTS):
            while True:
                held = condition()
                if inspect.isawaitable(held):
                    held = await held
                if held:
                    return trio.current_time() - began_s
                await trio.sleep(look_s)
    raise NotInTime(what, seconds)
