"""Sparse memory: a sealed memfd with room for far more than is ever stored in it.

Only what was stored and not given back takes pages. A process that has the descriptor can store and
give back; it can neither shrink nor grow what others have mapped or read.
"""

import ctypes
import fcntl
import os

_SIZE_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# Constants of the kernel's falloc.h, which Python does not name.
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def create_sparse_memory(name: str, size: int, head: bytes = b"") -> int:
    """The descriptor of `size` bytes, zeros but for `head`; the caller's to close.

    Raises `OSError`.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        os.pwrite(fd, head, 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def punch_hole(fd: int, begin: int, end: int) -> None:
    """Give back the memory from `begin` up to `end`: zeros are there again. Raises `OSError`."""
    if begin < end and _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, begin, end - begin):
        error = ctypes.get_errno()
        raise OSError(error, f"memory cannot be given back: {os.strerror(error)}")
