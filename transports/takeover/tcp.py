"""Accepted TCP connections as the kernel knows them: bytes taken and given, state, and abort.

A process that goes on with a connection of a dead one asks here where that one stopped. Counts are
since the connection was accepted and exact, as long as no process reads or writes it meanwhile.
"""

import ctypes
import fcntl
import os
import resource
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

# `struct tcp_info` of linux/tcp.h up to `tcpi_bytes_received`; Linux has it since 4.1.
_INFO = struct.Struct("=B119xQQ")
_UNSPECIFIED = struct.pack("=H14x", socket.AF_UNSPEC)
_INT = struct.Struct("=i")
# Enough for a few thousand segments in a socket's buffers; each may come between two looks.
LOOKS_MAX = 10_000

AnySocket = socket.socket | trio.socket.SocketType

_libc = ctypes.CDLL(None, use_errno=True)
_libc.connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


# `tcpi_state`, of linux/tcp_states.h.
_ESTABLISHED, _FIN_WAIT1, _FIN_WAIT2, _CLOSE_WAIT, _LAST_ACK, _CLOSING = 1, 4, 5, 8, 9, 11
_FIN_SENT = {_FIN_WAIT1, _FIN_WAIT2, _LAST_ACK, _CLOSING}
_FIN_RECEIVED = {_CLOSE_WAIT, _LAST_ACK, _CLOSING}


@attrs.frozen
class SocketCalls:
    """System calls on connections; a simulated kernel has its own."""

    read: Callable[[int, int], bytes] = os.read
    readv: Callable[[int, list[memoryview]], int] = os.readv
    write: Callable[[int, memoryview], int] = os.write
    ioctl: Callable[[Any, int, bytes], bytes] = fcntl.ioctl
    connect: Callable[[int, bytes, int], int] = _libc.connect
    wait_readable: Callable[[int], Awaitable[None]] = trio.lowlevel.wait_readable
    # A duplicate of this descriptor. Raises `OSError`.
    duplicate: Callable[[int], socket.socket] = lambda fd: socket.socket(fileno=os.dup(fd))
    # How many descriptors this process may open.
    descriptors_max: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]


SOCKET_CALLS = SocketCalls()


@attrs.frozen
class TcpCountsUnknown(Exception):
    """The kernel does not say how far a connection is."""

    reason: str

    def __str__(self) -> str:
        return f"it is not known where the connection stopped: {self.reason}"


@attrs.frozen
class _TcpInfo:
    """Each number includes the FIN of its direction, in the states that follow it."""

    state: int
    bytes_acked: int
    bytes_received: int


def make_countable(connection: AnySocket) -> None:
    """Prepare an accepted connection for being taken over; to be called before it is read.

    Urgent bytes become bytes as all others: else the kernel counts what no `recv` returns. Raises
    `TcpCountsUnknown` for a socket that cannot be taken over, such as a Unix socket.
    """
    _info(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)


def is_open(connection: AnySocket) -> bool:
    """Whether this end may still write: false after its FIN or a reset.

    Raises `TcpCountsUnknown`.
    """
    return _info(connection).state in (_ESTABLISHED, _CLOSE_WAIT)


def bytes_accepted(connection: AnySocket, calls: SocketCalls = SOCKET_CALLS) -> int:
    """How many bytes all `send` calls of its life have put into it.

    Raises `TcpCountsUnknown`, also when it was reset, or closed in both directions.
    """
    info, waiting = _steady_info(connection, termios.TIOCOUTQ, calls)
    return info.bytes_acked + waiting - (info.state in _FIN_SENT)


def bytes_read(connection: AnySocket, calls: SocketCalls = SOCKET_CALLS) -> int:
    """How many bytes all `recv` calls of its life have taken from it.

    Raises as `bytes_accepted` does.
    """
    info, waiting = _steady_info(connection, termios.FIONREAD, calls)
    return info.bytes_received - waiting - (info.state in _FIN_RECEIVED)


def abort(connection: AnySocket, calls: SocketCalls = SOCKET_CALLS) -> None:
    """Reset a connection at once, what is unsent included; its duplicates are reset with it.

    (A close, with `SO_LINGER` too, does so only where no other process has a duplicate.) Harmless
    if it was reset before. Raises `OSError`.
    """
    if calls.connect(connection.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)):
        error = ctypes.get_errno()
        raise OSError(error, f"a connection cannot be aborted: {os.strerror(error)}")


def _steady_info(connection: AnySocket, request: int, calls: SocketCalls) -> tuple[_TcpInfo, int]:
    """Counts, and the answer to this `ioctl` that belongs to them.

    The kernel gives them one after the other, and acknowledgements or bytes may come between: what
    stands between two equal looks belongs to both.
    """
    after = _info(connection)
    for _ in range(LOOKS_MAX):
        before = after
        (waiting,) = _INT.unpack(calls.ioctl(connection, request, bytes(_INT.size)))
        after = _info(connection)
        if before == after:
            if after.state != _ESTABLISHED and after.state not in _FIN_SENT | _FIN_RECEIVED:
                raise TcpCountsUnknown("it was reset, or closed in both directions")
            return after, waiting
    raise TcpCountsUnknown("its counts never rest")


def _info(connection: AnySocket) -> _TcpInfo:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        raise TcpCountsUnknown(f"its address family is {connection.family}")
    try:
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError as error:  # no TCP
        raise TcpCountsUnknown(error.strerror or str(error)) from error
    if len(data) < _INFO.size:
        raise TcpCountsUnknown(f"the kernel gives {len(data)} bytes of tcp_info only")
    return _TcpInfo(*_INFO.unpack(data))
