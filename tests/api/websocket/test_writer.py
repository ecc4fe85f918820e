"""The writer takes everything that waits in bursts, tells who waits for it, and ends in order."""

from typing import Any

import pytest
import trio
import trio.testing
from trio_websocket import CloseReason, ConnectionClosed

from triolet.api.http.stream import BoundedStream
from triolet.api.limits import SocketLimits
from triolet.api.websocket.frames import FrameStream
from triolet.api.websocket.limits_guard import FrameGuard
from triolet.api.websocket.outbox import OneEvent
from triolet.api.websocket.writer import SocketWriter


class OpenSocket:
    """As much of a trio-websocket connection as the writer looks at."""

    closed: CloseReason | None = None


def make_writer(
    stream: trio.abc.Stream, limits: SocketLimits | None = None
) -> tuple[SocketWriter, OpenSocket]:
    limits = limits or SocketLimits()
    socket: Any = OpenSocket()
    frames = FrameStream(BoundedStream(stream, 20), FrameGuard(limits), head=b"")
    return SocketWriter(socket, frames, limits), socket


async def test_nothing_follows_a_close_frame() -> None:
    client, server = trio.testing.memory_stream_pair()
    writer, socket = make_writer(server)
    await writer._write_burst([b"a"])
    socket.closed = CloseReason(1000, None)
    with pytest.raises(ConnectionClosed):
        await writer._write_burst([b"never"])
    assert await client.receive_some(100) == b"\x81\x01a"
    await client.aclose()
    await server.aclose()


async def test_who_waits_is_told_when_a_lane_was_taken_and_when_all_was_written() -> None:
    client, server = trio.testing.lockstep_stream_pair()
    writer, _ = make_writer(server)
    done: list[str] = []
    busy = True

    async def wait_taken() -> None:
        await writer.wait_taken("a")
        done.append("taken")

    async def wait_idle() -> None:
        await writer.wait_idle(lambda: busy)
        done.append("idle")

    async with trio.open_nursery() as nursery:
        writer.mark_ready("a", OneEvent({"type": "x"}))
        for task in (wait_taken, wait_idle, writer.run):
            nursery.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["taken"]  # nobody reads: it is being written
        assert b'{"type":"x"' in await client.receive_some(100)
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["taken"]
        busy = False
        writer.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["taken", "idle"]
        nursery.cancel_scope.cancel("seen enough")
    await client.aclose()
    await server.aclose()


async def test_notices_are_bounded_and_the_writer_ends_with_the_connection() -> None:
    client, server = trio.testing.memory_stream_pair()
    writer, _ = make_writer(server, SocketLimits(waiting_errors_max=1))
    assert writer.put_notice({"type": "x"})
    assert not writer.put_notice({"type": "x"})
    await client.aclose()
    await writer.run()
    await server.aclose()
