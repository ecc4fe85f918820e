"""Memory of a step ring: its layout, and the descriptors of its two sides.

    0           magic, version, readers, slots (4 bytes each), slot_bytes (8)
    64 (1 + r)  consumed count of reader r (8 bytes, a cache line of its own), stored by it alone
    slots       each: sequence (8), number of an oversize payload or 0 (8), length (8), data

The memory is a memfd whose size is sealed: a mapping of it can never fault. All its pages are
reserved at creation, so that a machine short of memory says so there and not by SIGBUS in a step.
Counts are single aligned 8-byte stores. Waiting is `shm_ring`'s.
"""

import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Self

import attrs

from ..control.passed_fds import close_fds

_GEOMETRY = struct.Struct("<IIIIQ")
_MAGIC = 0x54524C54
_VERSION = 1
CACHE_LINE_BYTES = 64
SLOT_HEADER = struct.Struct("<QQQ")
SLOT_HEADER_BYTES = SLOT_HEADER.size
# A reader's bit of work is its rank's; more ranks than this on one host do not exist.
READERS_MAX = 256
SLOTS_MAX = 4096
_SIZE_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# How many descriptors `RingParts.reader_fds` lists: memory, eventfd, side socket.
READER_FDS = 3
# The same of `writer_fds`, with one reader.
WRITER_FDS = 3


@attrs.frozen
class RingBroken(Exception):
    """The other side broke the ring's rules, or these are not a ring's descriptors."""

    reason: str

    def __str__(self) -> str:
        return f"the ring is broken: {self.reason}"


@attrs.frozen(kw_only=True)
class RingGeometry:
    """Sizes of one ring. `slot_bytes`: payload that fits a slot; a larger one travels beside it."""

    readers: int = attrs.field(validator=[attrs.validators.ge(1), attrs.validators.le(READERS_MAX)])
    slots: int = attrs.field(validator=[attrs.validators.ge(1), attrs.validators.le(SLOTS_MAX)])
    slot_bytes: int = attrs.field(validator=attrs.validators.ge(1))

    @property
    def _stride(self) -> int:
        lines = -(-(SLOT_HEADER_BYTES + self.slot_bytes) // CACHE_LINE_BYTES)
        return lines * CACHE_LINE_BYTES

    @property
    def total_bytes(self) -> int:
        """Size of the whole memory."""
        return self.slot_offset(self.slots - 1) + self._stride

    def consumed_offset(self, rank: int) -> int:
        """Offset of this reader's count."""
        return CACHE_LINE_BYTES * (1 + rank)

    def slot_offset(self, sequence: int) -> int:
        """Offset of the slot of the message with this sequence number."""
        first = CACHE_LINE_BYTES * (1 + self.readers)
        return first + (sequence % self.slots) * self._stride


class RingMemory:
    """Mapping of a ring by one side. Owns the mapping, not the descriptor it was made from."""

    def __init__(self, memory_fd: int) -> None:
        """Raises `RingBroken` unless the descriptor is a ring's sealed memory."""
        self.geometry = _read_geometry(memory_fd)
        # Slices are copies, which is what a reader wants; a view would be one object more.
        self.bytes = mmap.mmap(memory_fd, self.geometry.total_bytes)
        self._words = memoryview(self.bytes).cast("Q")

    def load(self, offset: int) -> int:
        """Load an aligned 8-byte word."""
        return self._words[offset // 8]

    def store(self, offset: int, value: int) -> None:
        """Store an aligned 8-byte word, in one store."""
        self._words[offset // 8] = value

    def close(self) -> None:
        self._words.release()
        self.bytes.close()


@attrs.define(eq=False)
class RingParts:
    """The descriptors of a new ring, before its sides have theirs.

    The sides duplicate what they are given (or get copies by SCM_RIGHTS); leaving the `with` block
    closes the originals. Until then a side that is gone cannot be noticed.
    """

    geometry: RingGeometry
    memory_fd: int
    eventfds: list[int] = attrs.field(factory=list)
    writer_sides: list[int] = attrs.field(factory=list)
    reader_sides: list[int] = attrs.field(factory=list)

    def writer_fds(self) -> list[int]:
        """Descriptors for `RingWriter.attach`, here or in the process that they are sent to."""
        return [self.memory_fd, *self.eventfds, *self.writer_sides]

    def reader_fds(self, rank: int) -> list[int]:
        """Descriptors for `RingReader.attach(fds, rank)`; READER_FDS of them."""
        return [self.memory_fd, self.eventfds[rank], self.reader_sides[rank]]

    def close(self) -> None:
        close_fds([self.memory_fd, *self.eventfds, *self.writer_sides, *self.reader_sides])
        self.memory_fd = -1
        self.eventfds = []
        self.writer_sides = []
        self.reader_sides = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_ring(*, readers: int, slots: int, slot_bytes: int) -> RingParts:
    """A new ring: one writer, `readers` readers, `slots` messages in flight at most.

    Raises `OSError` where the memory or the descriptors cannot be had, `ValueError` for sizes that
    make no ring.
    """
    geometry = RingGeometry(readers=readers, slots=slots, slot_bytes=slot_bytes)
    parts = RingParts(geometry, os.memfd_create("triolet-ring", _MEMFD_FLAGS))
    try:
        os.posix_fallocate(parts.memory_fd, 0, geometry.total_bytes)
        header = _GEOMETRY.pack(_MAGIC, _VERSION, readers, slots, slot_bytes)
        os.pwrite(parts.memory_fd, header, 0)
        fcntl.fcntl(parts.memory_fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
        for _ in range(readers):
            parts.eventfds.append(os.eventfd(0, _EVENTFD_FLAGS))
            ends = socket.socketpair(socket.AF_UNIX, _SIDE_SOCKET_TYPE)
            parts.writer_sides.append(ends[0].detach())
            parts.reader_sides.append(ends[1].detach())
    except BaseException:
        parts.close()
        raise
    return parts


_MEMFD_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
# Each count is one message. Blocking, so that a thread waits and takes in one system call; a reader
# that is a task's makes its own non-blocking.
_EVENTFD_FLAGS = os.EFD_CLOEXEC | os.EFD_SEMAPHORE
_SIDE_SOCKET_TYPE = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


def duplicate_fds(fds: Sequence[int]) -> list[int]:
    """Close-on-exec copies, all or none. Raises `OSError`."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))
    except BaseException:
        close_fds(copies)
        raise
    return copies


def _read_geometry(memory_fd: int) -> RingGeometry:
    try:
        seals = fcntl.fcntl(memory_fd, fcntl.F_GET_SEALS)
        header = os.pread(memory_fd, _GEOMETRY.size, 0)
        size = os.fstat(memory_fd).st_size
    except OSError as error:
        raise RingBroken("the memory's descriptor is no memfd") from error
    if len(header) < _GEOMETRY.size or seals & _SIZE_SEALS != _SIZE_SEALS:
        raise RingBroken("the memory is not a sealed ring")
    magic, version, readers, slots, slot_bytes = _GEOMETRY.unpack(header)
    if magic != _MAGIC or version != _VERSION:
        raise RingBroken(f"magic {magic:#x}, version {version}")
    try:
        geometry = RingGeometry(readers=readers, slots=slots, slot_bytes=slot_bytes)
    except ValueError as error:
        raise RingBroken(str(error)) from error
    if geometry.total_bytes != size:
        raise RingBroken(f"{size} bytes of memory, {geometry.total_bytes} by its header")
    return geometry
