"""Connection server: takes connections from a source and gives each a task of its own.

A source is one of trio's listeners (embedded runtimes), or a queue of descriptors that the root
accepted and passed on (`serve`). What ends the serving task is a programming error of the accept
loop itself, nothing that a client can do.
"""

import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from typing import Protocol

import trio

from ...nurseries.tasks.background import start_background_task_soon, waiting_for
from ...nurseries.tasks.service import open_service
from ..application import Application
from ..http.stream import BoundedStream
from ..settings import address_of
from .connection import run_connection

# The whole answer above a limit: fixed bytes, nothing is read or parsed for it.
FULL_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: 126\r\n\r\n"
    b'{"error":{"message":"Too many connections; try again later",'
    b'"type":"server_error","param":null,"code":"too_many_connections"}}'
)
# A fresh socket takes these bytes at once; the bound is for hostile ones.
REFUSAL_S = 1.0
# As trio.serve_listeners: with no descriptors left, accepting again at once would only spin.
OUT_OF_DESCRIPTORS_S = 0.1
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
# Connections handed over and not taken yet; the taker only starts a task for each.
QUEUE_CONNECTIONS_MAX = 64


class ConnectionSource(Protocol):
    """Gives out connections, one caller at a time: a `trio.SocketListener`, or a `QueueSource`."""

    async def accept(self) -> trio.SocketStream:
        """The next connection; the caller owns it. Cancellation loses none.

        Raises `trio.EndOfChannel` or `trio.ClosedResourceError` when there will be no more.
        """


class QueueSource:
    """Connections that a task of this process puts in, such as descriptors from the root."""

    def __init__(self) -> None:
        self._put, self._taken = trio.open_memory_channel[socket.socket](QUEUE_CONNECTIONS_MAX)

    def put_nowait(self, connection: socket.socket) -> bool:
        """Hand one over; False if the queue is full, then the caller still owns it."""
        try:
            self._put.send_nowait(connection)
        except trio.WouldBlock:
            return False
        return True

    async def accept(self) -> trio.SocketStream:
        """The next connection that was put. Raises `ClosedResourceError` after `abandon`."""
        connection = await self._taken.receive()
        return trio.SocketStream(trio.socket.from_stdlib_socket(connection))

    def abandon(self) -> None:
        """Close the connections that were not taken: their clients see it at once."""
        self._put.close()
        while True:
            try:
                self._taken.receive_nowait().close()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                break
        self._taken.close()


@contextlib.asynccontextmanager
async def open_queue_source() -> AsyncIterator[QueueSource]:
    """A queue that leaves no descriptor behind, however its block ends."""
    source = QueueSource()
    try:
        yield source
    finally:
        source.abandon()


async def serve_connections(
    source: ConnectionSource,
    application: Application,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until the source ends and all its connections have, or until cancelled.

    Resource handling: every connection taken from the source is closed when this returns, and no
    response runs any more; the source belongs to the caller. Error handling: a connection's errors
    end that connection alone. Cancellation: aborts all requests of all connections.
    """
    responses = application.responses.run
    async with (
        open_service(responses, name="responses", waits_for="responses to run"),
        trio.open_nursery() as nursery,
    ):
        task_status.started()
        while True:
            try:
                with waiting_for("connections"):
                    stream = await source.accept()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                await trio.sleep(OUT_OF_DESCRIPTORS_S)
                continue
            address = address_of(stream.socket)
            if application.is_full(address):
                application.count_refused()
                start_background_task_soon(nursery, _refuse, stream, name="connection-refusal")
            else:
                start_background_task_soon(
                    nursery, run_connection, stream, application, address, name="connection"
                )


async def _refuse(stream: trio.SocketStream) -> None:
    bounded = BoundedStream(stream, REFUSAL_S)
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await bounded.send_all(FULL_ANSWER)
    await trio.aclose_forcefully(bounded)
