"""WebSocket connection on trio-websocket, and what has to stand around that library.

What every session on a socket stands on, the echo of the conformance cases included. trio-websocket
runs the closing handshake, pings and messages; it lacks three things:

- *Limits* (`frame_guard`, in front of it). It bounds the bytes of a message but not the number of
  its fragments (measured: 1.86 M empty ones grew a process without bound), nor pings; and what
  breaks RFC 6455 ends a connection without a close frame, so that its author learns nothing.
- *Bursts* (`frame_stream`, below it). It makes a system call for each message.
- *A door for a request that was read already.* It opens a connection by reading a head, and its
  way past that is private. So it is given a head that we write, with the client's key and nothing
  else of the client's: the one head on a connection is parsed by `http_parser` alone.
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
    connection: HttpConnection, limits: SocketLimits, *, key: str, early: bytes
) -> AsyncIterator[tuple[WebSocketConnection, FrameStream]]:
    """Accept the handshake with the client's `key`; the block is the socket's life.

    Raises `BrokenResourceError` when the connection is lost: bare before the block is entered, in a
    group afterwards. Resource handling: the connection's stream stays open, unless the socket was
    closed. Cancellation: ends the socket without a close frame.
    """
    guard = FrameGuard(limits, connection.share)
    stream = FrameStream(connection.stream, guard, head=_handshake(key), early=early)
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
        pass  # trio-websocket's reader answered a ping or a close when the other side had gone
    if not is_open:
        raise trio.BrokenResourceError("the client left within its handshake")


def _handshake(key: str) -> bytes:
    """The head that trio-websocket reads."""
    return (
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: " + key.encode("ascii") + b"\r\n\r\n"
    )
