"""Memory that processes share in huge pages: a memfd, mapped where its pages can be huge.

The kernel gives a memfd pages of 4 KiB unless an administrator says otherwise (`shmem_enabled`,
"never" by default), and with those a decode step waits for page tables. But whatever that setting
says, it merges pages into a huge one when it is asked to (MADV_COLLAPSE, Linux 6.1), and makes
those that are not there in the merge. So each piece gets one small page and is merged at once.
"""

import ctypes
import errno
import itertools
import mmap
import os
from collections.abc import Callable

import attrs
import numpy

from .binding import HUGE_PAGE_BYTES, Bytes

# Constants of the kernel's mman-common.h, which Python does not name.
_POPULATE_WRITE = 23
_COLLAPSE = 25
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value
_PAGE_BYTES = mmap.PAGESIZE
# The kernel may be moving a page of the piece at that moment.
_COLLAPSE_TRIES = 5
# `st_blocks` counts these.
_BLOCK_BYTES = 512
# Between two reports of progress.
REPORTED_BYTES = 2**27
Progress = Callable[[float], None]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = _libc.madvise.argtypes = (*_libc.munmap.argtypes, ctypes.c_int)


@attrs.frozen(eq=False)
class SharedMapping:
    """`size` bytes of a memfd at a place where huge pages fit; mapped until `close`.

    No view of `bytes` may be used after that: a process that keeps them for its life never closes.
    """

    address: int
    size: int

    @classmethod
    def of(cls, fd: int, size: int, *, writable: bool) -> "SharedMapping":
        """Map the beginning of a memfd. Raises `OSError`."""
        reserved = size + HUGE_PAGE_BYTES
        nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        whole = _map(None, reserved, 0, nothing, fd=-1)
        address = whole + -whole % HUGE_PAGE_BYTES
        try:
            # A private mapping of what is read only: older kernels refuse a shared one once the
            # memory is sealed.
            kind = mmap.MAP_SHARED if writable else mmap.MAP_PRIVATE
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            _map(address, size, access, kind | _MAP_FIXED, fd=fd)
        except OSError:
            _libc.munmap(whole, reserved)
            raise
        return cls(address, size)

    @property
    def bytes(self) -> Bytes:
        """The whole memory."""
        whole = (ctypes.c_uint8 * self.size).from_address(self.address)
        return numpy.frombuffer(memoryview(whole), dtype=numpy.uint8)

    def close(self) -> None:
        """Unmap it; the address space around it stays reserved."""
        _libc.munmap(self.address, self.size)

    def take_huge_pages(self, progress: Progress) -> bool:
        """Give every piece its huge page; values stay. False, and at once, where there are none.

        Later pieces that get none get small pages: as right, and slower. `progress` gets the
        fraction that is done. Raises `MemoryError`. The size must be of whole huge pages.
        """
        # The first alone: it says whether there are any. Then many in a call, as each call waits
        # for every processor once, which on a busy machine is milliseconds.
        steps = [0, *range(HUGE_PAGE_BYTES, self.size, REPORTED_BYTES), self.size]
        for begin, end in itertools.pairwise(steps):
            for piece in range(begin, end, HUGE_PAGE_BYTES):
                self._populate(piece, _PAGE_BYTES)
            if not self._collapse(begin, end - begin):
                if begin == 0:
                    return False
                self._populate(begin, end - begin)
            progress(end / self.size)
        return True

    def _populate(self, begin: int, size: int) -> None:
        if _libc.madvise(self.address + begin, size, _POPULATE_WRITE):
            reason = os.strerror(ctypes.get_errno())
            raise MemoryError(f"no pages for {self.size} bytes: {reason}")

    def _collapse(self, begin: int, size: int) -> bool:
        for _ in range(_COLLAPSE_TRIES):
            if not _libc.madvise(self.address + begin, size, _COLLAPSE):
                return True
            if ctypes.get_errno() != errno.EAGAIN:
                break
        return False


def has_huge_pages() -> bool:
    """Whether this kernel gives shared memory huge pages where it is asked to. Raises `OSError`."""
    fd = os.memfd_create("triolet-huge-pages", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, HUGE_PAGE_BYTES)
        mapping = SharedMapping.of(fd, HUGE_PAGE_BYTES, writable=True)
        try:
            return mapping.take_huge_pages(lambda fraction: None)
        finally:
            mapping.close()
    finally:
        os.close(fd)


def whole_pages(size: int) -> int:
    """The least number of bytes in whole huge pages that holds `size`."""
    return -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES


def has_all_pages(fd: int, size: int) -> bool:
    """Whether the memfd is of this size, and has a page behind every byte."""
    found = os.fstat(fd)
    return found.st_size == size and found.st_blocks * _BLOCK_BYTES >= size


def protect(memory: Bytes) -> None:
    """Make memory read-only for this process, but for the pages that it shares with others."""
    begin = memory.__array_interface__["data"][0]
    first, end = -(-begin // _PAGE_BYTES), (begin + len(memory)) // _PAGE_BYTES
    if end > first:
        size = (end - first) * _PAGE_BYTES
        if _libc.mprotect(first * _PAGE_BYTES, size, mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), "mprotect")


def _map(address: int | None, size: int, access: int, flags: int, *, fd: int) -> int:
    mapped = _libc.mmap(address, size, access, flags, fd, 0)
    if mapped is None or mapped == _FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {size} bytes")
    return int(mapped)
