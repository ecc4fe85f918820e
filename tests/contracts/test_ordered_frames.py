"""What the step ring and the control channel both promise: whole messages, once, in order."""

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import pytest
import trio
import trio.testing

from triolet.transports.control.channel import ControlChannel
from triolet.transports.rings.ring_memory import create_ring
from triolet.transports.rings.shm_ring import RingFull, RingReader, RingWriter

from ..leaks import open_fds

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


@attrs.frozen
class Payload:
    data: bytes


@contextlib.asynccontextmanager
async def open_control() -> AsyncIterator[Carrier]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ControlChannel(left, sends=[Payload]) as sender,
        ControlChannel(right, receives=[Payload]) as receiver,
    ):

        async def send(data: bytes) -> None:
            await sender.send(Payload(data))

        async def receive() -> bytes:
            message, fds = await receiver.receive()
            assert isinstance(message, Payload)
            assert fds == []
            return message.data

        yield Carrier(send, receive)


@contextlib.asynccontextmanager
async def open_ring() -> AsyncIterator[Carrier]:
    with create_ring(readers=1, slots=4, slot_bytes=4_000) as parts:
        writer = RingWriter.attach(parts.writer_fds())
        reader = RingReader.attach(parts.reader_fds(0), 0)
    with writer, reader:
        # The ring only says that it is full; its callers wait for answers. Here: for room.
        room = trio.Semaphore(4)

        async def send(data: bytes) -> None:
            await room.acquire()
            try:
                writer.write(data)
            except RingFull:
                pytest.fail("the ring is full with a slot free")

        async def receive() -> bytes:
            data = await reader.wait_read()
            room.release()
            return bytes(data)

        yield Carrier(send, receive)


@pytest.mark.parametrize("make", [open_control, open_ring])
async def test_carries_whole_messages_in_order(
    make: Maker, autojump_clock: trio.testing.MockClock
) -> None:
    before = open_fds()
    await check_ordered_frames(make)
    assert open_fds() == before
