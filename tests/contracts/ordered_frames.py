"""What the step ring and the control channel both promise: whole messages, once, in order.

A suite as functions that take a maker; `test_ordered_frames.py` runs it on both carriers.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import trio

# Empty, small, around an inline bound, and far beyond it.
SIZES = (0, 1, 3_900, 4_000, 4_100, 32_700, 32_800, 300_000)


@attrs.frozen
class Carrier:
    """One end that sends and one that receives; `send` may raise `full` when it cannot take it."""

    send: Callable[[bytes], Awaitable[None]]
    receive: Callable[[], Awaitable[bytes]]


Maker = Callable[[], contextlib.AbstractAsyncContextManager[Carrier]]


def _payload(number: int) -> bytes:
    size = SIZES[number % len(SIZES)]
    return number.to_bytes(4, "little") + bytes((number % 251,)) * size


async def check_ordered_frames(make: Maker) -> None:
    """Runs every check on fresh carriers."""
    for check in (_check_sizes, _check_both_at_once, _check_cancelled_receives):
        async with make() as carrier:
            await check(carrier)


async def _check_sizes(carrier: Carrier) -> None:
    for number in range(2 * len(SIZES)):
        await carrier.send(_payload(number))
        assert await carrier.receive() == _payload(number)


async def _check_both_at_once(carrier: Carrier) -> None:
    async def send_all() -> None:
        for number in range(100):
            await carrier.send(_payload(number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all)
        for number in range(100):
            assert await carrier.receive() == _payload(number)


async def _check_cancelled_receives(carrier: Carrier) -> None:
    """A receive that is cancelled, waiting or not, has taken nothing."""
    for number in range(20):
        with trio.CancelScope() as scope:
            if number % 2:
                await carrier.send(_payload(number))
                scope.cancel("there is a message, but we must not take it")
            else:
                scope.deadline = trio.current_time() + 0.001
            await carrier.receive()
        assert scope.cancelled_caught
        if not number % 2:
            await carrier.send(_payload(number))
        assert await carrier.receive() == _payload(number)


@contextlib.asynccontextmanager
async def no_descriptor_is_left(open_fds: Callable[[], set[str]]) -> AsyncIterator[None]:
    """Whatever a carrier opened is closed at the end of the block."""
    before = open_fds()
    yield
    assert open_fds() == before
