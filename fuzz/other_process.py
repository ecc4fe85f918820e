"""Sockets and threads of other processes: duplicated and stopped from outside.

`pidfd_getfd` gives a duplicate of a descriptor, so that its connection can be ended while its owner
knows nothing of it; `ptrace` stops a single thread, or keeps a killed process from ending. All need
a process of our own user that we have started, however far above, or more rights.
"""

import contextlib
import ctypes
import os
import platform
import socket
import struct
from collections.abc import Iterator

from .observers import PROC, descriptors

# The number is the same on every architecture of Linux but for alpha.
_PIDFD_GETFD = 438
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_STOP_AT_EXIT = 1 << 6  # PTRACE_O_TRACEEXIT
# Flag of `waitpid` for threads that are no children of ours, too (__WALL).
_WAIT_ALL = 0x40000000
_CREDENTIALS = struct.Struct("iII")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long
assert platform.system() == "Linux"


def duplicate(pid: int, fd: int) -> int:
    """A descriptor of another process, as one of ours, the caller's to close. Raises `OSError`."""
    pidfd = os.pidfd_open(pid)
    try:
        found: int = _libc.syscall(_PIDFD_GETFD, pidfd, fd, 0)
    finally:
        os.close(pidfd)
    return found if found >= 0 else _raise()


@contextlib.contextmanager
def sockets_between(pid: int, peer: int) -> Iterator[list[socket.socket]]:
    """Duplicates of the Unix sockets of a process that another one has made or accepted.

    Raises `OSError` when it is gone.
    """
    with contextlib.ExitStack() as opened:
        found = []
        for fd, what in descriptors(pid).items():
            if not what.startswith("socket:"):
                continue
            with contextlib.suppress(OSError):  # it is closed by now
                copy = opened.enter_context(socket.socket(fileno=duplicate(pid, fd)))
                if copy.family == socket.AF_UNIX and peer_of(copy) == peer:
                    found.append(copy)
        yield found


def peer_of(connected: socket.socket) -> int:
    """The process at the other end, as of its `connect`, `listen` or `socketpair`; 0: not
    connected."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(data)[0]
    return pid


def threads_of(pid: int, name: str) -> list[int]:
    """The threads of a process whose name begins so. Raises `OSError` when it is gone."""
    folder = PROC / str(pid) / "task"
    return sorted(
        int(task.name) for task in folder.iterdir() if (task / "comm").read_text().startswith(name)
    )


@contextlib.contextmanager
def stopped_thread(tid: int) -> Iterator[None]:
    """Stop one thread; the others of its process go on. Raises `OSError` when it is gone.

    To be left in the thread that entered it. A thread that is killed meanwhile ends.
    """
    _ptrace(_SEIZE, tid)
    try:
        _ptrace(_INTERRUPT, tid)
        os.waitpid(tid, _WAIT_ALL)
        yield
    finally:
        try:
            _ptrace(_DETACH, tid)
        except OSError:  # it was killed, and its process is not over before we have seen that
            with contextlib.suppress(OSError):
                os.waitpid(tid, _WAIT_ALL)


@contextlib.contextmanager
def kept_from_ending(pid: int) -> Iterator[None]:
    """Keep a process from ending that is killed, as one that hangs in the kernel: none of its code
    runs any more, and all that it has stays open. Raises `OSError` when it is gone.

    To be left in the thread that entered it: then it ends, or goes on if it was not killed.
    """
    _ptrace(_SEIZE, pid, _STOP_AT_EXIT)
    try:
        yield
    finally:
        try:
            _ptrace(_DETACH, pid)
        except OSError:  # it runs
            _ptrace(_INTERRUPT, pid)
            os.waitpid(pid, _WAIT_ALL)
            _ptrace(_DETACH, pid)


def _ptrace(order: int, tid: int, options: int | None = None) -> None:
    if _libc.ptrace(order, tid, None, options) < 0:
        _raise()


def _raise() -> int:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
