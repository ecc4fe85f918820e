"""Connection server: takes connections from a source and gives each a task of its own.

A source is one of trio's listeners (embedded runtimes), or a queue of descriptors that the root
accepted and passed on (`serve`). What ends the serving task is a programming error of the accept
loop itself, nothing that a client can do.
"""

import contextlib
import errno
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

import attrs
import trio

from ...nurseries.processes.boot import SHORTAGES
from ...nurseries.tasks.background import start_background_task_soon, waiting_for
from ...nurseries.tasks.service import open_service
from ...transports.takeover.memory import SLOTS
from ..application import Application
from ..connection_shares import address_of
from ..http.held import NO_SLOT
from ..http.stream import BoundedStream
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
# Pause of trio.serve_listeners: without descriptors, accepting again at once would only spin.
OUT_OF_DESCRIPTORS_S = 0.1
_OUT_OF_DESCRIPTORS = SHORTAGES | {errno.ENOBUFS}
# Connections handed over and not taken yet; the taker only starts a task for each. After the death
# of a process all of its connections come at once.
QUEUE_CONNECTIONS_MAX = 64 + SLOTS


@attrs.frozen
class PassedConnection:
    """A connection with the number of its slot, if it has one; a life before may have begun it.

    One that is `unheld` has none for this reason.
    """

    stream: trio.SocketStream
    slot: int = NO_SLOT
    is_taken_over: bool = False
    unheld: str = ""


class ConnectionSource(Protocol):
    """Gives out connections, one caller at a time: a `trio.SocketListener`, or a `QueueSource`."""

    async def accept(self) -> trio.SocketStream | PassedConnection:
        """The next connection; the caller owns it. Cancellation loses none.

        Raises `trio.EndOfChannel` or `trio.ClosedResourceError` when there will be no more.
        """


class QueueSource:
    """Connections that a task of this process puts in, such as descriptors from the root."""

    def __init__(self) -> None:
        self._put, self._taken = trio.open_memory_channel[PassedConnection](QUEUE_CONNECTIONS_MAX)
        self._open = trio.Event()
        self._open.set()

    def pause(self) -> None:
        """Take no connections until `resume`."""
        self._open = trio.Event()

    def resume(self) -> None:
        """Take connections again."""
        self._open.set()

    def put_nowait(
        self,
        connection: socket.socket,
        slot: int = NO_SLOT,
        *,
        is_taken_over: bool = False,
        unheld: str = "",
    ) -> bool:
        """Hand one over, with its slot; False if the queue is full: the caller still owns it."""
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        try:
            self._put.send_nowait(PassedConnection(stream, slot, is_taken_over, unheld))
        except trio.WouldBlock:
            return False
        return True

    async def accept(self) -> PassedConnection:
        """The next connection that was put. Raises `ClosedResourceError` after `abandon`."""
        await self._open.wait()
        return await self._taken.receive()

    def abandon(self) -> None:
        """Close the connections that were not taken: their clients see it at once."""
        self._put.close()
        self.resume()
        while True:
            try:
                self._taken.receive_nowait().stream.socket.close()
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
    responses = application.streams.run
    async with (
        open_service(responses, name="responses", waits_for="responses to run"),
        open_service(application.keep_alive.run, name="keep-alive"),
        trio.open_nursery() as nursery,
    ):
        task_status.started()
        while True:
            try:
                with waiting_for("connections"):
                    accepted = await source.accept()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                await trio.sleep(OUT_OF_DESCRIPTORS_S)
                continue
            passed = accepted
            if not isinstance(passed, PassedConnection):
                passed = PassedConnection(passed)
            address = address_of(passed.stream.socket)
            if application.is_full(address) and not passed.is_taken_over:
                application.count_refused()
                refuse = partial(_refuse, passed, application)
                start_background_task_soon(nursery, refuse, name="connection-refusal")
            else:
                served = (passed.stream, application, address, passed.slot)
                run = partial(
                    run_connection,
                    *served,
                    is_taken_over=passed.is_taken_over,
                    unheld=passed.unheld,
                )
                start_background_task_soon(nursery, run, name="connection")


async def _refuse(passed: PassedConnection, application: Application) -> None:
    bounded = BoundedStream(passed.stream, REFUSAL_S, calls=application.calls)
    try:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await bounded.send_all(FULL_ANSWER)
    finally:
        await trio.aclose_forcefully(bounded)
        application.handle_closed(passed.slot)
