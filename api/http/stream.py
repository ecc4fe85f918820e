"""Byte stream of one connection: writes with a deadline, a read-ahead buffer, a disconnect watch.

How many bytes a write has sent that was cancelled or came too late is unknown; what followed would
be read as part of it. So the connection is aborted at once. Deadlines are of progress: a large
write is cut into pieces, each with its own.

One background task for each connection reads ahead, up to a bound, so that a client that leaves is
noticed while it is being answered, without a task for each answer.
"""

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ...nurseries.tasks.background import BackgroundTask, start_background_task_soon
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import single_errors_unwrapped
from ...transports.takeover.tcp import SOCKET_CALLS, SocketCalls, abort
from .held import HeldStream
from .request import EMPTY_LINE, skip_empty_lines

# Bytes of one deadline: 256 KiB in 20 s is the slowest reader that we serve, 13 KB/s.
PIECE_BYTES = 256 * 2**10
# The kernel holds so much that it has not sent; more waits with us, where deltas are merged. The
# value is the one that browsers' peers use for the same purpose (HTTP/2 prioritization).
UNSENT_BYTES_MAX = 16 * 2**10
# Bytes of one read, unless its caller says.
RECEIVE_BYTES = 64 * 2**10


@attrs.define(eq=False)
class BoundedStream(trio.abc.HalfCloseableStream):
    """Wraps a transport that it owns. One task writes at a time."""

    transport: trio.abc.Stream
    write_s: float
    # The slot, if a successor may go on with the stream.
    held: HeldStream | None = None
    # Why no successor can, though the server was to see to it.
    unheld: str = ""
    calls: SocketCalls = SOCKET_CALLS
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
        if self.held is not None:
            self.held.follow(data)
        await self._write(memoryview(data))

    async def finish(self, rest: bytes) -> None:
        """Write what is left of a chunk that another process began; raises as `send_all`."""
        await self._write(memoryview(rest))

    async def linger(self, seconds: float, bytes_max: int) -> None:
        """Say that nothing more comes, and read away a little of what the client still sends."""
        size = 0
        with (
            trio.move_on_after(seconds),
            contextlib.suppress(
                trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError
            ),
        ):
            await self.send_eof()
            while size < bytes_max:
                data = await self.receive_some(RECEIVE_BYTES)
                if not data:
                    break
                size += len(data)

    async def _write(self, view: memoryview) -> None:
        if self.held is not None:
            self.held.written += len(view)
        view = view[self._write_now(view) :]
        if view:
            await self._write_slowly(view)

    async def _write_slowly(self, view: memoryview) -> None:
        if self.held is not None:
            self.held.unwritten = view
        for start in range(0, len(view), PIECE_BYTES):
            await self._send_piece(view[start : start + PIECE_BYTES])
        if self.held is not None:
            self.held.unwritten = b""

    def _write_now(self, view: memoryview) -> int:
        """How many bytes the kernel took; 0 also for an error, which the slow way will meet."""
        if not self._is_socket or self._is_waiting:
            return 0
        assert isinstance(self.transport, trio.SocketStream)
        try:
            return self.calls.write(self.transport.socket.fileno(), view[:PIECE_BYTES])
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
            await self.calls.wait_readable(descriptor)
            try:
                if self.held is not None:
                    return self.held.receive(self.calls, own.fileno(), max_bytes or RECEIVE_BYTES)
                return self.calls.read(own.fileno(), max_bytes or RECEIVE_BYTES)
            except BlockingIOError:
                continue  # a spurious wake-up
            except OSError as error:
                if own.fileno() >= 0:
                    raise trio.BrokenResourceError(f"the connection broke: {error}") from error
        raise trio.ClosedResourceError("this stream was closed")

    def end_held(self) -> None:
        """Say that nothing more comes if another process has a duplicate: our close alone would
        not be seen at once.
        """
        if self.held is not None and isinstance(self.transport, trio.SocketStream):
            with contextlib.suppress(trio.ClosedResourceError, OSError):
                self.transport.socket.shutdown(socket.SHUT_WR)

    async def send_eof(self) -> None:
        """Say that nothing more comes, where the transport can say so."""
        if isinstance(self.transport, trio.abc.HalfCloseableStream):
            await self.transport.send_eof()

    async def abort(self) -> None:
        """Cut the connection: with RST where it is a socket. Safe when cancelled; idempotent."""
        self.aborted = True
        if isinstance(self.transport, trio.SocketStream):
            with contextlib.suppress(trio.ClosedResourceError, OSError):
                # Unless another task closed it, or the client left.
                abort(self.transport.socket, self.calls)
        await trio.aclose_forcefully(self.transport)

    async def aclose(self) -> None:
        """Close without waiting for the peer."""
        await self.transport.aclose()


@attrs.define(eq=False)
class ReadAhead:
    """The incoming half of one connection, used by one task beside the reader.

    `ahead_bytes_max` bounds what is read before anybody asks for it; beyond, the client waits.
    """

    stream: BoundedStream
    ahead_bytes_max: int
    # Bytes not used yet; at most `ahead_bytes_max` and one receive, unless more is asked for.
    buffer: bytearray = attrs.field(factory=bytearray, init=False)
    # The client closed or reset its side: nothing more comes.
    is_ended: bool = attrs.field(default=False, init=False)
    _reader: BackgroundTask | None = attrs.field(default=None, init=False)
    # Cancelled when the client leaves.
    _answering: trio.CancelScope | None = attrs.field(default=None, init=False)
    # `more` is waiting; rung then when something was read or the end was met.
    _is_wanted: bool = attrs.field(default=False, init=False)
    _arrived: Doorbell = attrs.field(factory=Doorbell, init=False)
    # Set when more is asked for, for the reader that has enough.
    _asked: trio.Event | None = attrs.field(default=None, init=False)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Read ahead during the block. Raises what the body raises, bare when it is one error.

        Resource handling: the stream stays open.
        """
        with single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                reader = start_background_task_soon(nursery, self._read, name="connection-reader")
                self._reader = reader
                try:
                    yield
                finally:
                    self._reader = None
                    reader.cancel("the connection is over")

    async def stop_reading(self) -> None:
        """The caller reads from now on; nothing is lost."""
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.cancel("the connection was taken over")
            await reader.wait_ended()

    def head(self, bytes_max: int) -> bytes:
        """The request head at the start of the buffer, where it stays; empty while not whole. Empty
        lines before it are dropped.
        """
        skip_empty_lines(self.buffer)
        return bytes(self.buffer[: max(0, self.buffer.find(EMPTY_LINE, 0, bytes_max))])

    def has_request(self) -> bool:
        """Whether bytes of a request are here; empty lines are none, and are dropped."""
        skip_empty_lines(self.buffer)
        return bool(self.buffer) and self.buffer != b"\r"

    async def wait_request(self) -> bool:
        """Wait for the first bytes of a request; False when the client closed instead."""
        while not self.has_request():
            if not await self.more():
                return False
        return True

    async def more(self) -> bool:
        """Wait until the buffer has grown; False when the client has closed or reset instead."""
        if self.is_ended:
            return False
        size = len(self.buffer)
        if self._reader is None:
            await self._receive()
        else:
            self._is_wanted = True
            if self._asked is not None:
                self._asked.set()
            try:
                while len(self.buffer) == size and not self.is_ended:
                    await self._arrived.wait()
            finally:
                self._is_wanted = False
        return len(self.buffer) > size

    def keep_from_here(self) -> None:
        """Keep input only from here on, for a successor too."""
        held = self.stream.held
        if held is not None:
            held.kept_from = held.received - len(self.buffer)

    def cancel_at_end(self, scope: trio.CancelScope | None) -> None:
        """Cancel this scope when the client closes or resets, or has already."""
        self._answering = scope
        if self.is_ended and scope is not None:
            scope.cancel("the client has left")

    async def _read(self) -> None:
        """Background task `connection-reader`: ends with the input, or the input with it."""
        try:
            while not self.is_ended:
                if len(self.buffer) >= self.ahead_bytes_max and not self._is_wanted:
                    self._asked = trio.Event()
                    await self._asked.wait()
                    self._asked = None
                await self._receive()
        finally:
            if self._reader is not None:  # `stop_reading` was not called
                self._note(b"")

    async def _receive(self) -> None:
        try:
            data = await self.stream.receive_some(RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        self._note(data)

    def _note(self, data: bytes | bytearray) -> None:
        """Add what came, or the end; wake the task that waits for it."""
        if data:
            self.buffer += data
        else:
            self.is_ended = True
        if self._is_wanted:
            self._arrived.ring()
        if self.is_ended and self._answering is not None:
            self._answering.cancel("the client has left")
