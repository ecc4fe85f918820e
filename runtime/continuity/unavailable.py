"""Fixed bytes of the root for clients whose frontend is away for too long: come back.

The root knows no HTTP: it writes these and closes. A connection that no frontend has had gets a
503. One that waits for its next frontend in vain, as the one before hangs in the kernel, has a slot
which says what may stand behind what was written (`EndForm`): the 503, an error event in the middle
of a stream, whose end then is missing, or the close frame of a WebSocket; else it is reset. So no
client takes it for whole.
"""

import socket
import struct
from contextlib import suppress

from ...transports.takeover.memory import SlotMappings
from ...transports.takeover.slot import ConnectionSlot, EndForm, SlotRecord
from ...transports.takeover.tcp import TcpCountsUnknown, abort, bytes_accepted, bytes_read

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
# SDKs of OpenAI and of Anthropic raise what `error` holds, whichever the stream is of.
_EVENT = (
    b'event: error\ndata: {"type":"error","error":{"message":"the frontend of this stream hangs in'
    b' the kernel; try again","type":"server_error","param":null,"code":"frontend_stuck"}}\n\n'
)
_REASON = b"the frontend of this socket hangs in the kernel; try again later"
_TRY_AGAIN_LATER = 1013
_ENDINGS = {
    EndForm.EVENTS: b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT),
    EndForm.FRAMES: struct.pack("!BBH", 0x88, 2 + len(_REASON), _TRY_AGAIN_LATER) + _REASON,
}
# Before anything was written: the state is not looked at.
_NEW = SlotRecord(0, b"", b"new", 0)
# Bytes that a client has sent are read first: closing with unread bytes is a reset.
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


def end_unavailable(connection: socket.socket, slots: SlotMappings, slot: int) -> None:
    """End a connection that a frontend has had, which is gone or does nothing any more.

    The socket stays the caller's. Never waits: a client that does not read sees a reset.
    """
    with suppress(OSError):
        try:
            connection.setblocking(False)
            last = _last_bytes(connection, slots, slot)
            if connection.send(last) < len(last):
                raise BlockingIOError
            connection.shutdown(socket.SHUT_WR)
        except (OSError, ValueError, TcpCountsUnknown):
            abort(connection)


def _last_bytes(connection: socket.socket, slots: SlotMappings, slot: int) -> bytes:
    """The rest of what was being written, and its ending; `ValueError` where only a reset will do.

    Raises also `OSError`, `TcpCountsUnknown`.
    """
    found = ConnectionSlot.found(slots.view(slot))
    try:
        record = found.record() or _NEW
    finally:
        found.release()
    accepted, received = bytes_accepted(connection), bytes_read(connection)
    is_said = bool(record.state) and 0 <= accepted - record.begin <= len(record.output)
    if not is_said or record.ending is EndForm.CUT:
        raise ValueError("an end here would not be seen")
    rest = record.output[accepted - record.begin :]
    if record.ending is not EndForm.UNANSWERED:
        return rest + _ENDINGS[record.ending]
    with suppress(BlockingIOError):
        received += len(connection.recv(_READ_BYTES_MAX))
    return rest + (UNAVAILABLE if received > record.kept_from else b"")
