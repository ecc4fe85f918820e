"""Connection sources of a frontend: its own listener, or a queue of passed descriptors.

Under `serve` the root accepts and passes descriptors, embedded runtimes listen themselves; the
server sees one protocol.
"""

import errno
import socket
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# As trio.serve_listeners: with no descriptors left, accepting again at once would only spin.
OUT_OF_DESCRIPTORS_S = 0.1
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
# The kernel's own queue of connections that are not accepted yet; its usual ceiling (somaxconn).
BACKLOG = 4096
# Connections handed over and not taken yet; the taker only starts a task for each.
QUEUE_CONNECTIONS_MAX = 64


class ConnectionSource(Protocol):
    """Gives out connections, one caller at a time."""

    async def accept(self) -> trio.socket.SocketType:
        """The next connection; the caller owns it.

        Raises `trio.EndOfChannel` when there will be no more. Cancellation loses none.
        """


@attrs.define(eq=False)
class ListenerSource:
    """Accepts from a listening socket that it owns. An async context manager."""

    listener: trio.socket.SocketType

    @classmethod
    async def open(cls, host: str = "127.0.0.1", port: int = 0) -> "ListenerSource":
        """Bind and listen; port 0 lets the kernel choose. Raises `OSError` (address in use…)."""
        addresses = await trio.socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = addresses[0]
        listener = trio.socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        return cls(listener)

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect to."""
        host, port = self.listener.getsockname()[:2]
        return host, port

    async def accept(self) -> trio.socket.SocketType:
        """The next connection; waits out a lack of descriptors and connections that died early."""
        while True:
            try:
                connection, _ = await self.listener.accept()
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    await trio.sleep(OUT_OF_DESCRIPTORS_S)
                elif error.errno == errno.EBADF:
                    raise trio.EndOfChannel from error  # closed by `close`
            except trio.ClosedResourceError as error:
                raise trio.EndOfChannel from error
            else:
                return connection

    def close(self) -> None:
        """Stop listening; a waiting `accept` raises `EndOfChannel`. Idempotent."""
        self.listener.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class QueueSource:
    """Connections that a task of this process puts in, such as descriptors from the root."""

    def __init__(self) -> None:
        self._put, self._taken = trio.open_memory_channel[socket.socket](QUEUE_CONNECTIONS_MAX)

    def put_nowait(self, connection: socket.socket) -> bool:
        """Hand one over; False if the queue is full, then the caller still owns it.

        Raises `trio.ClosedResourceError` after `close`.
        """
        try:
            self._put.send_nowait(connection)
        except trio.WouldBlock:
            return False
        return True

    async def accept(self) -> trio.socket.SocketType:
        """The next connection that was put. Raises `EndOfChannel` after `close`."""
        connection = await self._taken.receive()
        return trio.socket.from_stdlib_socket(connection)

    def close(self) -> None:
        """No more will come; what is queued is still given out. Idempotent."""
        self._put.close()

    def abandon(self) -> None:
        """Close the connections that were not taken: their clients see it at once."""
        self._put.close()
        while True:
            try:
                self._taken.receive_nowait().close()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                break
        self._taken.close()


@asynccontextmanager
async def open_queue_source() -> "AsyncIterator[QueueSource]":
    """A queue that leaves no descriptor behind, however its block ends."""
    source = QueueSource()
    try:
        yield source
    finally:
        source.abandon()
