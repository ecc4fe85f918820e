"""Bursts are one write, in order; reads come from our head, then past the guard."""

import attrs
import pytest
import trio
import trio.testing
from wsproto.frame_protocol import FrameProtocol, Opcode

from triolet.api.http.stream import BoundedStream
from triolet.api.settings import SocketLimits
from triolet.api.websocket.frames import FrameStream, close_frame, sent_texts, text_frames
from triolet.api.websocket.limits_guard import FrameGuard
from triolet.runtime.hands import TABLE_BYTES, ContentKind, Hands, content_of, read_hands
from triolet.runtime.messages import Doubted

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


def make(recorder: Recorder, **limits: int) -> FrameStream:
    guard = FrameGuard(SocketLimits(**limits))
    return FrameStream(BoundedStream(recorder, 20), guard, head=b"head", early=EARLY)


async def test_a_burst_is_one_write_of_frames() -> None:
    recorder = Recorder()
    await make(recorder).send_texts([b"a", b"bc"])
    assert recorder.writes == [b"\x81\x01a\x81\x02bc"]


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_frames_are_those_of_the_rfc(size: int) -> None:
    client = FrameProtocol(client=True, extensions=[])
    texts = [b"x" * size, "é".encode()]
    assert list(sent_texts(text_frames(texts) + close_frame(1000, "over"))) == texts
    client.receive_bytes(text_frames(texts))
    messages = [""]
    for frame in client.received_frames():
        assert frame.opcode in (Opcode.TEXT, Opcode.CONTINUATION)
        messages[-1] += str(frame.payload)
        if frame.message_finished:
            messages.append("")
    assert messages == ["x" * size, "é", ""]


async def test_order_holds_while_a_write_is_under_way() -> None:
    client, server = trio.testing.lockstep_stream_pair()
    stream = FrameStream(BoundedStream(server, 20), FrameGuard(SocketLimits()), head=b"")
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


async def test_what_others_send_meanwhile_is_one_write_more() -> None:
    gate = trio.Event()

    class Slow(Recorder):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            await gate.wait()
            await super().send_all(data)

    recorder = Slow()
    stream = make(recorder)
    async with trio.open_nursery() as nursery:
        for piece in (b"1", b"2"):
            nursery.start_soon(stream.send_all, piece)
            await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel("its frame is whole, and leaves with the others")
            await stream.send_all(b"3")
        gate.set()
    assert recorder.writes == [b"1", b"23"]


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


async def test_a_violation_is_answered_and_ends_the_stream() -> None:
    recorder = Recorder(reads=[TOO_LONG])
    stream = make(recorder, message_bytes_max=100)
    stream.open_gate()
    await stream.receive_some()
    await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"a late event")
    assert recorder.writes == [close_frame(1009, "message over 100 bytes")]
    assert stream.violation is not None
    await stream.wait_send_all_might_not_block()
    await stream.aclose()
    assert recorder.closed


async def test_the_text_of_a_frame_is_in_hand_while_it_is_read() -> None:
    class ReadingGuard(FrameGuard):
        def read(self, piece: bytes) -> None:
            assert read_hands(bytes(table)) == [content_of(ContentKind.FRAME, "p", piece)]
            found.append(piece)
            super().read(piece)

    found, table = list[bytes](), bytearray(TABLE_BYTES)
    masked = b'\x01\x82\0\0\0\0{"' + b"\x80\x83abcd\x00\x00\x1e"
    guard, hands = ReadingGuard(SocketLimits()), Hands(memoryview(table))
    recorder = Recorder(reads=[masked[:-1], masked[-1:], b"\x88\x82\0\0\0\0\x03\xe8"])
    stream = FrameStream(BoundedStream(recorder, 20), guard, b"", hands=hands, principal="p")
    stream.open_gate()
    for _ in range(3):
        await stream.receive_some()
    assert found == [b'{"', b"ab", b"}", b"\x03\xe8"], "without the masks"
    assert read_hands(bytes(table)) == []


async def test_a_frame_that_ended_frontends_closes_its_socket() -> None:
    hands = Hands(memoryview(bytearray(TABLE_BYTES)))
    content = content_of(ContentKind.FRAME, "p", b"x")
    hands.handle_doubted(Doubted([], {content: float("inf")}))
    recorder = Recorder(reads=[b"\x81\x81\0\0\0\0y\x81\x81abcd\x19"])
    guard = FrameGuard(SocketLimits())
    stream = FrameStream(BoundedStream(recorder, 20), guard, b"", hands=hands, principal="p")
    stream.open_gate()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    assert recorder.writes[0][2:4] == (1008).to_bytes(2, "big")
    assert recorder.writes[0][4:].startswith(b"request_quarantined: ")


def test_a_close_frame_is_small_and_unmasked() -> None:
    frame = close_frame(1008, "é" * 200)
    assert frame[:4] == b"\x88\x7d\x03\xf0"
    assert len(frame) == 2 + 125
