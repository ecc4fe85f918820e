"""Writes while corked make one write; reads come from our head, then past the guard."""

import attrs
import pytest
import trio
import trio.testing

from triolet.api.bounded_stream import BoundedStream
from triolet.api.corked_stream import CorkedStream, close_frame
from triolet.api.frame_guard import FrameGuard
from triolet.api.limits import SocketLimits

# Masked frames of text: one without data, one that waits for its byte, one that is too long.
EARLY, MORE, TOO_LONG = b"\x81\x80mask", b"\x81\x81mask", b"\x81\xfe\x10\x00mask"


@attrs.define(eq=False)
class Recorder(trio.abc.Stream):
    """Keeps every write apart."""

    writes: list[bytes] = attrs.field(factory=list)
    reads: list[bytes] = attrs.field(factory=list)
    closed: bool = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.writes.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.reads.pop(0)

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


def make(recorder: Recorder, **limits: int) -> CorkedStream:
    guard = FrameGuard(SocketLimits(**limits))
    return CorkedStream(BoundedStream(recorder, 20), guard, head=b"head", early=EARLY)


async def test_a_burst_is_one_write() -> None:
    recorder = Recorder()
    stream = make(recorder)
    stream.cork()
    for piece in (b"a", b"b", b"c"):
        await stream.send_all(piece)
    assert recorder.writes == []
    await stream.uncork()
    await stream.send_all(b"d")
    await stream.uncork()
    assert recorder.writes == [b"abc", b"d"]


async def test_release_takes_what_was_gathered_along() -> None:
    recorder = Recorder()
    stream = make(recorder)
    stream.cork()
    await stream.send_all(b"a")
    stream.release()
    await stream.send_all(b"close")
    assert recorder.writes == [b"aclose"]


async def test_order_holds_while_a_write_is_under_way() -> None:
    client, server = trio.testing.lockstep_stream_pair()
    stream = CorkedStream(BoundedStream(server, 20), FrameGuard(SocketLimits()), head=b"")
    received = b""
    async with trio.open_nursery() as nursery:
        for piece in (b"1", b"2", b"3"):
            nursery.start_soon(stream.send_all, piece)
            await trio.testing.wait_all_tasks_blocked()
        while len(received) < 3:
            received += await client.receive_some(10)
    assert received == b"123"
    await stream.aclose()
    await client.aclose()


async def test_the_head_is_ours_and_frames_wait_for_the_gate() -> None:
    stream = make(Recorder(reads=[MORE]))
    assert await stream.receive_some() == b"head"
    received: list[bytes] = []

    async def read() -> None:
        received.append(bytes(await stream.receive_some()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert received == []
        stream.open_gate()
    assert received == [EARLY]
    assert await stream.receive_some() == MORE


async def test_a_violation_is_told_and_ends_the_stream() -> None:
    recorder = Recorder(reads=[TOO_LONG])
    stream = make(recorder, message_bytes_max=100)
    stream.open_gate()
    await stream.receive_some()
    await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"a late event")
    await stream.uncork()
    assert recorder.writes == [close_frame(1009, "message over 100 bytes")]
    assert stream.violation is not None
    await stream.wait_send_all_might_not_block()
    await stream.aclose()
    assert recorder.closed


def test_a_close_frame_is_small_and_unmasked() -> None:
    frame = close_frame(1008, "é" * 200)
    assert frame[:4] == b"\x88\x7d\x03\xf0"
    assert len(frame) == 2 + 125
