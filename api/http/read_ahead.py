"""Read-ahead buffer and disconnect watch of one HTTP connection.

One background task for each connection reads ahead, up to a bound, so that a client that leaves is
noticed while it is being answered, without a task for each answer.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ...nurseries.tasks.background import BackgroundTask, start_background_task_soon
from ...nurseries.tasks.error_groups import single_errors_unwrapped
from ...nurseries.tasks.parking import Doorbell
from .stream import RECEIVE_BYTES, BoundedStream


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
    # Somebody waits for more; rung then when something was read or the end was met.
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

    def cancel_at_end(self, scope: trio.CancelScope | None) -> None:
        """From now on cancel this scope when the client closes or resets; also when it has."""
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
