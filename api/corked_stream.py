"""The stream that trio-websocket reads and writes: corked writes, counted frames, our own head.

Writing: while corked, `send_all` only gathers; `uncork` sends everything in one call, so that one
burst of events is one system call (trio-websocket alone makes one per message). Control frames go
the same way, so order holds. Reading: first a handshake that *we* wrote from a request that h11
has checked, so that trio-websocket never sees a client's head; then, once accepted, the client's
bytes, past the frame guard. A violation is answered with its close code and ends the stream, in
both directions: nothing may follow a close frame.

Must not know events or lanes.
"""

import attrs
import trio

from .bounded_stream import BoundedStream
from .frame_guard import FrameGuard, FrameViolation

# A close frame's reason has at most 125 bytes with its code; ours are short ASCII sentences.
_CLOSE_OPCODE = 0x88
_REASON_BYTES_MAX = 123


def close_frame(code: int, reason: str) -> bytes:
    """An unmasked close frame (RFC 6455, 5.5.1), built by hand: no state machine is asked."""
    text = reason.encode("ascii", "replace")[:_REASON_BYTES_MAX]
    return bytes((_CLOSE_OPCODE, 2 + len(text))) + code.to_bytes(2, "big") + text


@attrs.define(eq=False)
class CorkedStream(trio.abc.Stream):
    """`head` is read first; `early` are bytes that came behind the client's own handshake."""

    transport: BoundedStream
    guard: FrameGuard
    head: bytes
    early: bytes = b""
    violation: FrameViolation | None = attrs.field(default=None, init=False)

    # Gathered while corked; bounded by one burst of the outbox and the frame guard's bucket.
    _gathered: bytearray = attrs.field(factory=bytearray, init=False)
    _corked: bool = attrs.field(default=False, init=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _accepted: trio.Event = attrs.field(factory=trio.Event, init=False)

    def open_gate(self) -> None:
        """The handshake is answered: from now on the client's bytes are frames."""
        self._accepted.set()

    def cork(self) -> None:
        """Gather what is written from here on."""
        self._corked = True

    def release(self) -> None:
        """End the gathering; the next write takes along what was gathered."""
        self._corked = False

    async def uncork(self) -> None:
        """Write what was gathered, in one call. Cancellation aborts the connection."""
        self._corked = False
        await self._flush()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Gather, or write at once when not corked. Raises `BrokenResourceError` once it ended."""
        if self.violation is not None:
            raise trio.BrokenResourceError(str(self.violation))
        self._gathered += data
        if self._corked:
            await trio.lowlevel.checkpoint()
        else:
            await self._flush()

    async def _flush(self) -> None:
        async with self._lock:
            data, self._gathered = self._gathered, bytearray()
            if data:
                await self.transport.send_all(data)

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
        self._corked = False
        self._gathered += close_frame(code, reason)
        await self._flush()

    async def aclose(self) -> None:
        """Close the transport."""
        await self.transport.aclose()
