"""An echo server on the server's own connection code, from the HTTP parser to trio-websocket.

Two limits are wide, since section 9 sends messages in 65 536 frames, and 1 000 messages without a
byte in no time; everything else is as served.
"""

import trio
from trio_websocket import ConnectionClosed

from triolet.api.http.connection import HttpConnection
from triolet.api.http.stream import BoundedStream
from triolet.api.limits import HttpLimits, SocketLimits
from triolet.api.websocket.frames import open_socket

LIMITS = SocketLimits(fragments_per_message_max=2**16, idle_frames_burst=4096)


async def serve_echo(stream: trio.abc.Stream) -> None:
    """Serve one connection: every message back as it came, until the client closes."""
    limits = HttpLimits()
    connection = HttpConnection(BoundedStream(stream, limits.write_s), limits)
    try:
        request = await connection.next_request()
        assert request is not None
        early = await connection.begin_upgrade()
        key = request.websocket_key()
        async with open_socket(connection, LIMITS, key=key, early=early) as (socket, _):
            try:
                while True:
                    await socket.send_message(await socket.get_message())
            except ConnectionClosed:
                pass
        await connection.close_in_order()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(connection.stream)
