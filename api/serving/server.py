"""Connection server: takes connections from a source and gives each a task of its own.

What ends this task is a programming error of the accept loop itself, nothing that a client can do.
"""

import contextlib

import trio

from ...nurseries.tasks.background import start_background_task_soon
from ...nurseries.tasks.service import open_service
from ...nurseries.tasks.waiting import waiting_for
from ..application import Application
from ..http.client_addresses import address_of
from ..http.stream import BoundedStream
from .connection import run_connection
from .connection_source import ConnectionSource

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
                    socket = await source.accept()
            except trio.EndOfChannel:
                return
            address = address_of(socket)
            stream = trio.SocketStream(socket)
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
