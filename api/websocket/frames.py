"""WebSocket connection on trio-websocket, and the stream of frames beneath that library.

Every session on a socket stands on it, the echo of the conformance cases included. trio-websocket
runs the closing handshake, pings and messages; it lacks three things:

- *Limits* (`limits_guard`, in front of it). It bounds the bytes of a message but not the number of
  its fragments (measured: 1.86 M empty ones grew a process without bound), nor pings; and what
  breaks RFC 6455 ends a connection without a close frame, so that its author learns nothing. Here a
  violation is answered with its close code and ends the stream, in both directions: nothing may
  follow a close frame.
- *Bursts*. It asks a state machine for each message and makes a system call for each, at ten times
  the CPU. Texts leave as frames made here, a whole burst in one call. Its own control frames go the
  same way, so order holds; what several tasks send while one writes is one write more.
- *A door for a request that was read already.* It opens a connection by reading a head, and its
  way past that is private. So it is given a head that we write, with the client's key and nothing
  else of the client's: the one head on a connection is parsed by `http.request` alone.
"""

import struct
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from ...runtime.errors import RequestQuarantined
from ...runtime.hands import ContentKind, Hands
from ..http.connection import HttpConnection
from ..http.stream import RECEIVE_BYTES, BoundedStream
from ..settings import SocketLimits
from .limits_guard import POLICY_VIOLATION, FrameGuard, FrameViolation

# A whole text in one frame, unmasked (RFC 6455, 5.2), with each form of its length.
_TEXT = 0x81
_SMALL_MAX, _MEDIUM_MAX = 125, 2**16 - 1
_MEDIUM = struct.Struct(">BBH")
_LARGE = struct.Struct(">BBQ")
# A close frame's reason has at most 125 bytes with its code; ours are short ASCII sentences.
_CLOSE_OPCODE = 0x88
_REASON_BYTES_MAX = 123


def close_frame(code: int, reason: str) -> bytes:
    """An unmasked close frame (RFC 6455, 5.5.1), built by hand: no state machine is asked."""
    text = reason.encode("ascii", "replace")[:_REASON_BYTES_MAX]
    return bytes((_CLOSE_OPCODE, 2 + len(text))) + code.to_bytes(2, "big") + text


def text_frames(texts: Iterable[bytes]) -> bytes:
    """Each UTF-8 text as one frame."""
    parts = []
    for text in texts:
        size = len(text)
        if size <= _SMALL_MAX:
            parts.append(bytes((_TEXT, size)))
        elif size <= _MEDIUM_MAX:
            parts.append(_MEDIUM.pack(_TEXT, 126, size))
        else:
            parts.append(_LARGE.pack(_TEXT, 127, size))
        parts.append(text)
    return b"".join(parts)


def sent_texts(frames: bytes) -> Iterator[bytes]:
    """The texts of whole frames that were sent; control frames are passed over."""
    place = 0
    while place < len(frames):
        opcode, size = frames[place], frames[place + 1]
        place += 2
        if size > _SMALL_MAX:
            length = 2 if size == 126 else 8
            size = int.from_bytes(frames[place : place + length], "big")
            place += length
        if opcode == _TEXT:
            yield frames[place : place + size]
        place += size


@attrs.define(eq=False)
class FrameStream(trio.abc.Stream):
    """`head` is read first; `early` are bytes that came behind the client's own handshake, which
    another process has answered when the socket `is_taken_over`. What a frame says is in hand, as
    the principal's, while the guard reads it; wsproto, which is Python alone, gets it afterwards.
    """

    transport: BoundedStream
    guard: FrameGuard
    head: bytes
    early: bytes = b""
    is_taken_over: bool = False
    hands: Hands = attrs.field(factory=Hands)
    principal: str = ""
    violation: FrameViolation | None = attrs.field(default=None, init=False)
    # Position of the client's frames in a held connection's input.
    _begin: int = attrs.field(default=0, init=False)

    # Waits for the write that is under way; bounded by one burst for each task that sends and the
    # frame guard's bucket of pings.
    _gathered: bytearray = attrs.field(factory=bytearray, init=False)
    _is_writing: bool = attrs.field(default=False, init=False)
    _written: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _accepted: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        if self.transport.held is not None:
            self._begin = self.transport.held.received - len(self.early)

    def open_gate(self) -> None:
        """The handshake is answered: from now on the client's bytes are frames."""
        self._accepted.set()

    @property
    def _message_ends(self) -> deque[int]:
        assert self.guard.message_ends is not None
        return self.guard.message_ends

    @property
    def message_end(self) -> int:
        """End, in a held connection's input, of the first message that was not taken."""
        return self._begin + self._message_ends[0]

    def handle_taken(self) -> None:
        """The next message was taken, and its effect is in the session's state: say so.

        So are frames that wait for a write, which may wait for the client.
        """
        held = self.transport.held
        if held is not None:
            held.kept_from = self.message_end
            self._message_ends.popleft()
            held.follow(self._gathered)

    async def send_texts(self, texts: Iterable[bytes]) -> None:
        """Send texts as frames, in one write. The caller knows that the socket is open."""
        await self.send_all(text_frames(texts))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write whole frames, with what others send meanwhile.

        Raises `BrokenResourceError` once it ended. Cancelled while another task writes: they leave
        with the next write. Cancelled while it writes: aborts the connection.
        """
        if self.violation is not None:
            raise trio.BrokenResourceError(str(self.violation))
        if self.is_taken_over and not self._accepted.is_set():
            return  # the handshake's answer
        self._gathered += data
        await self._flush()

    async def _flush(self) -> None:
        while self._is_writing:
            await self._written.park()
        if not self._gathered:
            return  # the one who wrote last has taken it along
        data, self._gathered = self._gathered, bytearray()
        self._is_writing = True
        try:
            await self.transport.send_all(data)
        finally:
            self._is_writing = False
            self._written.unpark_all()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the transport may take bytes."""
        await self.transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """The head, then frames. Raises `BrokenResourceError` after a violation."""
        if self.head:
            head, self.head = self.head, b""
            return head
        await self._accepted.wait()
        if self.early:
            data: bytes | bytearray = self.early
            self.early = b""
        else:
            data = await self.transport.receive_some(max_bytes)
        try:
            await self._check(data)
        except FrameViolation as violation:
            self.violation = violation
            await self.close_with(violation.code, violation.reason)
            raise trio.BrokenResourceError(str(violation)) from violation
        return data

    async def _check(self, data: bytes | bytearray) -> None:
        for piece in self.guard.pieces(data, trio.current_time()):
            try:
                with await self.hands.take(ContentKind.FRAME, self.principal, piece):
                    self.guard.read(piece)
            except RequestQuarantined as refused:  # without it, none that follows means anything
                reason = f"{refused.code}: a frame that ended processes of the server is refused"
                raise FrameViolation(POLICY_VIOLATION, reason) from None

    async def close_with(self, code: int, reason: str) -> None:
        """Send a close frame behind what was gathered; the caller closes the stream then."""
        self._gathered += close_frame(code, reason)
        await self._flush()

    async def aclose(self) -> None:
        """Close the transport."""
        await self.transport.aclose()


@attrs.frozen
class Opening:
    """Checked handshake of a client: its key, the selected subprotocol, if any, and the bytes that
    came behind it."""

    key: str
    subprotocol: str = ""
    early: bytes = b""

    def head(self) -> bytes:
        """The head that trio-websocket reads."""
        offer = f"Sec-WebSocket-Protocol: {self.subprotocol}\r\n" if self.subprotocol else ""
        return (
            "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"{offer}Sec-WebSocket-Key: {self.key}\r\n\r\n"
        ).encode("ascii")


# Messages that trio-websocket parsed and our reader has not taken; it takes them at once.
MESSAGE_QUEUE = 4


@asynccontextmanager
async def open_socket(
    connection: HttpConnection,
    limits: SocketLimits,
    opening: Opening,
    *,
    is_taken_over: bool = False,
    principal: str = "",
) -> AsyncIterator[tuple[WebSocketConnection, FrameStream]]:
    """Accept the client's handshake; the block is the socket's life, for this principal.

    Of one that `is_taken_over` the client was answered before.

    Raises `BrokenResourceError` when the connection is lost: bare before the block is entered, in a
    group afterwards. Resource handling: the connection's stream stays open, unless the socket was
    closed. Cancellation: ends the socket without a close frame.
    """
    # Bounded by the messages that were read and not taken: of one receive, or of the queue.
    ends = deque[int]() if connection.stream.held is not None else None
    guard = FrameGuard(limits, connection.share, ends)
    stream = FrameStream(
        connection.stream,
        guard,
        opening.head(),
        opening.early,
        is_taken_over,
        connection.hands,
        principal,
    )
    is_open = False
    try:
        async with trio.open_nursery() as nursery:
            handshake = await wrap_server_stream(
                nursery,
                stream,
                message_queue_size=MESSAGE_QUEUE,
                max_message_size=limits.message_bytes_max,
                receive_buffer_size=RECEIVE_BYTES,
            )
            headers = [(n.encode(), v.encode()) for n, v in connection.standing_headers]
            subprotocol = opening.subprotocol or None
            socket = await handshake.accept(subprotocol=subprotocol, extra_headers=headers)
            stream.open_gate()
            is_open = True
            yield socket, stream
            nursery.cancel_scope.cancel("the socket is over")
    except* ConnectionClosed:
        pass  # trio-websocket's reader answered a ping or a close when the other side had gone
    if not is_open:
        raise trio.BrokenResourceError("the client left within its handshake")
