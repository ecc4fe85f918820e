"""File descriptors beside a message (SCM_RIGHTS), and payloads in sealed memory.

Every received descriptor is close-on-exec and belongs to the caller that got the list; any error on
the way in closes all that came. A payload in a memfd is sealed by its sender: its size and bytes
cannot change any more, so that reading it can neither fault nor see two contents.
"""

import array
import fcntl
import os
import socket
from collections.abc import Iterable, Sequence

from ..array import Frame
from ..codec import MalformedMessage

# Rings of a worker need 3 + 3, an engine reports one pidfd a worker. The kernel's limit is 253.
PASSED_FDS_MAX = 128
_FD_BYTES = array.array("i").itemsize
_PAYLOAD_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def close_fds(fds: Iterable[int]) -> None:
    """Close each; one that is closed already does not keep the others open."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


def fds_to_ancillary(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    """The ancillary data for `sendmsg`; the sender keeps its descriptors open."""
    if not fds:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]


# Room for one more than may come: a memfd with the payload travels first.
ANCILLARY_BYTES = socket.CMSG_SPACE((PASSED_FDS_MAX + 1) * _FD_BYTES)
RECEIVE_FLAGS = socket.MSG_CMSG_CLOEXEC


def fds_from_ancillary(ancillary: Iterable[tuple[int, int, bytes]], flags: int) -> list[int]:
    """The descriptors that came with one `recvmsg(…, ANCILLARY_BYTES, RECEIVE_FLAGS)`.

    Raises `MalformedMessage`, with all of them closed, if the kernel had to cut data or
    descriptors (too many, or this process has no room for more).
    """
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % _FD_BYTES])
            fds += numbers
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_fds(fds)
        cut = "descriptors" if flags & socket.MSG_CTRUNC else "data"
        raise MalformedMessage(f"more {cut} than fit one message")
    return fds


def seal_in_memfd(parts: Sequence[Frame], name: str) -> int:
    """A new sealed memfd with `parts` back to back; the caller owns it. Raises `OSError`."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _PAYLOAD_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_sealed(fd: int, bytes_max: int) -> bytearray:
    """A copy of what a sealed memfd holds; `fd` stays open and its offset where it is.

    Raises `MalformedMessage` for anything but a sealed memfd of at most `bytes_max` bytes, so that
    a pipe or a growing file passed instead can neither block nor flood us.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise MalformedMessage("the payload's descriptor is no memfd") from error
    if seals & _PAYLOAD_SEALS != _PAYLOAD_SEALS:
        raise MalformedMessage("the payload's memfd is not sealed")
    size = os.fstat(fd).st_size
    if size > bytes_max:
        raise MalformedMessage(f"a payload of {size} bytes, limit {bytes_max}")
    data = bytearray(size)
    got = 0
    while got < size:
        got += os.preadv(fd, [memoryview(data)[got:]], got)
    return data
