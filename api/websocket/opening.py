"""Opens a WebSocket on a connection whose handshake was checked.

What every session on a socket stands on: our head for trio-websocket instead of the client's, its
frames past the guard, its writes through the cork. Must not know what is said on the socket: the
Responses session runs on this, and so does the echo that the conformance cases are run against.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from ..http.connection import HttpConnection
from ..http.stream import RECEIVE_BYTES
from ..limits import SocketLimits
from .frames import FrameStream
from .limits_guard import FrameGuard

# Messages that trio-websocket parsed and our reader has not taken; it takes them at once.
MESSAGE_QUEUE = 4


@asynccontextmanager
async def open_socket(
    connection: HttpConnection, limits: SocketLimits, *, key: str
) -> AsyncIterator[tuple[WebSocketConnection, FrameStream]]:
    """Accept the handshake with the client's `key`; the block is the socket's life.

    Raises `BrokenResourceError` when the connection is lost: bare before the block is entered, in a
    group afterwards. Resource handling: the connection's stream stays open, unless the socket was
    closed; whoever opened it closes it. Cancellation: ends the socket without a close frame.
    """
    guard = FrameGuard(limits, connection.share)
    stream = FrameStream(
        connection.stream, guard, head=_handshake(key), early=connection.take_upgrade()
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
            socket = await handshake.accept(extra_headers=headers)
            stream.open_gate()
            is_open = True
            yield socket, stream
            nursery.cancel_scope.cancel("the socket is over")
    except* ConnectionClosed:
        pass  # trio-websocket's reader met the end while it was writing
    if not is_open:
        raise trio.BrokenResourceError("the client left within its handshake")


def _handshake(key: str) -> bytes:
    """The head that trio-websocket sees: ours, with the client's key and nothing else of it."""
    return (
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: " + key.encode("ascii") + b"\r\n\r\n"
    )
