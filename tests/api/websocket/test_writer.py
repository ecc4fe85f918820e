"""The writer gathers what waits in bursts, in turns, wakes those who wait, and ends in order."""

from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing
from trio_websocket import CloseReason, ConnectionClosed

from triolet.api.http.stream import BoundedStream
from triolet.api.openai.response_events import Event
from triolet.api.settings import SocketLimits
from triolet.api.websocket.frames import FrameStream
from triolet.api.websocket.limits_guard import FrameGuard
from triolet.api.websocket.writer import OneEvent, SocketWriter


class OpenSocket:
    """As much of a trio-websocket connection as the writer looks at."""

    closed: CloseReason | None = None


def make_writer(
    stream: trio.abc.Stream | None = None, **limits: int
) -> tuple[SocketWriter, OpenSocket]:
    """A writer into `stream`; without one it is only asked for its bursts."""
    stream = stream or trio.testing.memory_stream_pair()[0]
    socket: Any = OpenSocket()
    frames = FrameStream(BoundedStream(stream, 20), FrameGuard(SocketLimits()), head=b"")
    return SocketWriter(socket, frames, SocketLimits(**limits)), socket


def done(number: int) -> Event:
    return {"type": "response.completed", "sequence_number": number}


@attrs.define(eq=False)
class Several:
    """Gives one event at a time."""

    events: list[Event]

    @property
    def is_ready(self) -> bool:
        return bool(self.events)

    def take(self, characters_max: int) -> list[Event]:
        return [self.events.pop(0)]


def taken(writer: SocketWriter) -> list[Event]:
    writer.check_invariants()
    return [msgspec.json.decode(text) for text in writer.take_burst()]


async def test_a_burst_is_bounded_and_lanes_take_turns() -> None:
    writer, _ = make_writer(burst_bytes_max=150)
    for name in ("a", "b", "a"):  # one that is known already is not taken from twice
        writer.mark_ready(name, Several([done(number) for number in range(4)]))
    order = []
    while burst := taken(writer):
        assert len(burst) <= 3
        order += [(event["stream_id"], event["sequence_number"]) for event in burst]
    assert order == [(name, number) for number in range(4) for name in "ab"]


async def test_notices_go_first_and_are_bounded() -> None:
    writer, _ = make_writer(waiting_errors_max=2)
    writer.mark_ready(None, OneEvent(done(1)))
    assert writer.put_notice({"type": "error"})
    assert writer.put_notice({"type": "error"})
    assert not writer.put_notice({"type": "error"})
    assert [event["type"] for event in taken(writer)] == ["error", "error", "response.completed"]
    assert taken(writer) == []


async def test_nothing_follows_a_close_frame() -> None:
    client, server = trio.testing.memory_stream_pair()
    writer, socket = make_writer(server)
    await writer._write_burst([b"a"])
    socket.closed = CloseReason(1000, None)
    with pytest.raises(ConnectionClosed):
        await writer._write_burst([b"never"])
    assert await client.receive_some(100) == b"\x81\x01a"


async def test_who_waits_is_woken_when_a_lane_was_taken_and_when_all_was_written() -> None:
    client, server = trio.testing.lockstep_stream_pair()
    writer, _ = make_writer(server)
    woken: list[str] = []
    busy = True

    async def wait_taken() -> None:
        await writer.wait_taken("a")
        woken.append("taken")

    async def wait_idle() -> None:
        await writer.wait_idle(lambda: busy)
        woken.append("idle")

    async with trio.open_nursery() as nursery:
        writer.mark_ready("a", OneEvent({"type": "x"}))
        for task in (wait_taken, wait_idle, writer.run):
            nursery.start_soon(task)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == ["taken"]  # it is being written
        assert b'{"type":"x"' in await client.receive_some(100)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == ["taken"]
        busy = False
        writer.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert woken == ["taken", "idle"]
        nursery.cancel_scope.cancel("seen enough")


async def test_the_writer_ends_with_the_connection() -> None:
    client, server = trio.testing.memory_stream_pair()
    writer, _ = make_writer(server)
    assert writer.put_notice({"type": "x"})
    await client.aclose()
    await writer.run()
