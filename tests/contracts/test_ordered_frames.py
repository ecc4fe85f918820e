"""The step ring and the control channel pass one suite."""

import contextlib
import socket
from collections.abc import AsyncIterator

import attrs
import pytest
import trio
import trio.testing

from triolet.transports.control.channel import ControlChannel
from triolet.transports.rings.ring_memory import create_ring
from triolet.transports.rings.shm_ring import RingFull, RingReader, RingWriter

from ..transports.control.test_passed_fds import open_fds
from .ordered_frames import Carrier, Maker, check_ordered_frames, no_descriptor_is_left


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
    async with no_descriptor_is_left(open_fds):
        await check_ordered_frames(make)
