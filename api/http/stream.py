"""Byte stream whose writes have a deadline, and which is aborted when one does not complete.

How many bytes a write has sent that was cancelled or came too late is unknown; what followed would
be read as part of it. So the connection is aborted at once.

Deadlines are of progress: a large write is cut into pieces, each with its own.
"""

import contextlib
import os
import socket
import struct

import attrs
import trio

# One deadline's worth: 256 KiB in 20 s is the slowest reader that we serve, 13 KB/s.
PIECE_BYTES = 256 * 2**10
# The kernel holds so much that it has not sent; more waits with us, where deltas are merged. The
# value is the one that browsers' peers use for the same purpose (HTTP/2 prioritization).
UNSENT_BYTES_MAX = 16 * 2**10
# Of one read, unless its caller says.
RECEIVE_BYTES = 64 * 2**10
# struct linger: on, 0 s: close sends RST and the kernel drops what waits.
_LINGER_NONE = struct.pack("ii", 1, 0)


@attrs.define(eq=False)
class BoundedStream(trio.abc.HalfCloseableStream):
    """Wraps a transport that it owns. One task writes at a time."""

    transport: trio.abc.Stream
    write_s: float
    aborted: bool = attrs.field(default=False, init=False)
    _is_socket: bool = attrs.field(init=False)
    # A piece waits for the kernel: nothing may overtake it.
    _is_waiting: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._is_socket = isinstance(self.transport, trio.SocketStream)
        if isinstance(self.transport, trio.SocketStream):
            with contextlib.suppress(OSError):  # no TCP: a test's
                self.transport.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX
                )

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write everything. Raises `BrokenResourceError` also when a piece is late.

        What the kernel takes at once, it gets at once, without a deadline or a switch of tasks.
        Cancellation aborts the connection, unless nothing was to be written.
        """
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            if data:
                await self.abort()
            raise
        view = memoryview(data)
        view = view[self._write_now(view) :]
        for start in range(0, len(view), PIECE_BYTES):
            await self._send_piece(view[start : start + PIECE_BYTES])

    def _write_now(self, view: memoryview) -> int:
        """How many bytes the kernel took; 0 also for an error, which the slow way will meet."""
        if not self._is_socket or self._is_waiting:
            return 0
        assert isinstance(self.transport, trio.SocketStream)
        try:
            return os.write(self.transport.socket.fileno(), view[:PIECE_BYTES])
        except OSError:
            return 0

    async def _send_piece(self, piece: memoryview) -> None:
        is_sent = False
        self._is_waiting = True
        try:
            with trio.move_on_after(self.write_s):
                await self.transport.send_all(piece)
                is_sent = True
        finally:
            self._is_waiting = False
            if not is_sent:
                await self.abort()
        if not is_sent:
            raise trio.BrokenResourceError(f"the peer took nothing for {self.write_s:g} s")

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the transport may take bytes."""
        await self.transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Read; b"" at the end. The caller owns the deadline.

        Waits first: the caller has used what was here, and a try too early costs as much as a read.
        """
        if not isinstance(self.transport, trio.SocketStream):
            return await self.transport.receive_some(max_bytes)
        own = self.transport.socket
        while (descriptor := own.fileno()) >= 0:
            await trio.lowlevel.wait_readable(descriptor)
            try:
                return os.read(own.fileno(), max_bytes or RECEIVE_BYTES)
            except BlockingIOError:
                continue  # a spurious wake-up
            except OSError as error:
                if own.fileno() >= 0:
                    raise trio.BrokenResourceError(f"the connection broke: {error}") from error
        raise trio.ClosedResourceError("this stream was closed")

    async def send_eof(self) -> None:
        """Say that nothing more comes, where the transport can say so."""
        if isinstance(self.transport, trio.abc.HalfCloseableStream):
            await self.transport.send_eof()

    async def abort(self) -> None:
        """Cut the connection: with RST where it is a socket. Safe when cancelled; idempotent."""
        self.aborted = True
        if isinstance(self.transport, trio.SocketStream):
            try:
                self.transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            except (trio.ClosedResourceError, OSError):
                pass  # closed by another task, or never connected
        await trio.aclose_forcefully(self.transport)

    async def aclose(self) -> None:
        """Close without waiting for the peer."""
        await self.transport.aclose()
