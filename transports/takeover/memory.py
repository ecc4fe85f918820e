"""Connection slots: memory of one frontend rank that outlives each process of it.

The root makes it and passes it with INIT; a slot belongs to one connection, from the moment the
root passes it until both have closed it. What is in a slot is for the processes of that rank: the
root reads one word of it, how many may have died of it, and gives its pages back before the slot is
another connection's.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from ..sparse_memory import create_sparse_memory, punch_hole

# Of both directions: what a client has sent and is not journalled yet, at most a request's body,
# and what the kernel has not taken yet.
SLOT_BYTES = 16 * 2**20
# As many as the connections that a frontend serves by default (`ServerLimits.connections_max`).
SLOTS = 2048
# Of a slot's words: how many lives have begun to go on from it.
LIVES = 1
_WORD = struct.Struct("Q")


def create_slot_memory(rank: int) -> int:
    """The descriptor of empty slots, the caller's to close. Raises `OSError`."""
    return create_sparse_memory(f"triolet-connections-{rank}", SLOTS * SLOT_BYTES)


def free_slot(fd: int, slot: int) -> None:
    """Give back the pages of a slot: it reads as zeros again. Raises `OSError`."""
    punch_hole(fd, slot * SLOT_BYTES, (slot + 1) * SLOT_BYTES)


def read_lives(fd: int, slot: int) -> int:
    """`ConnectionSlot.lives` of this slot. Raises `OSError`."""
    place = slot * SLOT_BYTES + LIVES * _WORD.size
    return int(_WORD.unpack(os.pread(fd, _WORD.size, place))[0])


def write_lives(fd: int, slot: int, count: int) -> None:
    """Set it; no process may have the slot. Raises `OSError`."""
    os.pwrite(fd, _WORD.pack(count), slot * SLOT_BYTES + LIVES * _WORD.size)


@contextmanager
def map_slots(fd: int) -> Iterator[mmap.mmap]:
    """All slots in one mapping: address space alone, until something is stored.

    The caller owns the descriptor. Raises `OSError`; `ValueError` for other memory than slots.
    """
    with mmap.mmap(fd, SLOTS * SLOT_BYTES) as slots:
        slots.madvise(mmap.MADV_NOHUGEPAGE)  # a slot uses two pages
        yield slots
