"""Fixed answer to clients of a server whose frontends are all away: HTTP 503, come back.

The root knows no HTTP: it writes these bytes and closes. They are no answer to a WebSocket's frame
or to a second request, so only connections that no frontend has had get them.
"""

import socket
from contextlib import suppress

# A client that waited so long may be answered; most deaths are over in a tenth of it.
UNAVAILABLE_AFTER_S = 5.0
_BODY = (
    b'{"error":{"message":"no frontend of this server is ready; try again",'
    b'"type":"server_error","param":null,"code":"no_frontend"}}'
)
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"content-type: application/json\r\n"
    b"content-length: %d\r\n"
    b"retry-after: 5\r\n"
    b"connection: close\r\n\r\n%b"
) % (len(_BODY), _BODY)
# What a client has sent is taken first: closing with unread bytes is a reset.
_READ_BYTES_MAX = 1 << 20


def answer_unavailable(fd: int) -> None:
    """Answer the connection behind this descriptor, which stays the caller's; never waits."""
    with socket.socket(fileno=fd) as connection, suppress(OSError):
        connection.setblocking(False)
        try:
            with suppress(BlockingIOError):
                connection.recv(_READ_BYTES_MAX)
            connection.send(UNAVAILABLE)
            connection.shutdown(socket.SHUT_WR)
        finally:
            connection.detach()
