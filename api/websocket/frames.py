"""Stream under a WebSocket: frames of ours out, the client's frames in, past the guard.

Writing: texts leave as frames made here, a whole burst in one system call (trio-websocket asks a
state machine for each and makes a call for each, at ten times the CPU). Control frames of
trio-websocket go the same way, so order holds; what several tasks send while one writes is one
write more. Reading: first the head that `socket_opening` wrote; then, once accepted, the client's
bytes. A violation is answered with its close code and ends the stream, in both directions: nothing
may follow a close frame.
"""

import struct
from collections.abc import Iterable

import attrs
import trio

from ..http.stream import BoundedStream
from .limits_guard import FrameGuard, FrameViolation

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


@attrs.define(eq=False)
class FrameStream(trio.abc.Stream):
    """`head` is read first; `early` are bytes that came behind the client's own handshake."""

    transport: BoundedStream
    guard: FrameGuard
    head: bytes
    early: bytes = b""
    violation: FrameViolation | None = attrs.field(default=None, init=False)

    # Waits for the write that is under way; bounded by one burst for each task that sends and the
    # frame guard's bucket of pings.
    _gathered: bytearray = attrs.field(factory=bytearray, init=False)
    _is_writing: bool = attrs.field(default=False, init=False)
    _written: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _accepted: trio.Event = attrs.field(factory=trio.Event, init=False)

    def open_gate(self) -> None:
        """The handshake is answered: from now on the client's bytes are frames."""
        self._accepted.set()

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
            self.guard.feed(data, trio.current_time())
        except FrameViolation as violation:
            self.violation = violation
            await self.close_with(violation.code, violation.reason)
            raise trio.BrokenResourceError(str(violation)) from violation
        return data

    async def close_with(self, code: int, reason: str) -> None:
        """Send a close frame behind what was gathered; the caller closes the stream then."""
        self._gathered += close_frame(code, reason)
        await self._flush()

    async def aclose(self) -> None:
        """Close the transport."""
        await self.transport.aclose()
