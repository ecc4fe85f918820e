"""Connection slots: memory of one frontend rank that outlives each process of it.

The root makes it and passes it with INIT; a slot belongs to one connection, from the moment the
root passes it until both have closed it. What is in a slot is for the processes of that rank: the
root reads one word of it, how many may have died of it, and gives its pages back before the slot is
another connection's.
"""

import errno
import math
import mmap
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from ..sparse_memory import create_sparse_memory, punch_hole

# Size for both directions: input that is not journalled yet, at most a request's body, and output
# that the kernel has not taken yet.
SLOT_BYTES = 16 * 2**20
# The number of connections that a frontend serves by default (`ServerLimits.connections_max`).
SLOTS = 2048
# Slots that are mapped at once: Python keeps a descriptor for each mapping, and under `ulimit -v`
# address space is what a process may run out of.
MAPPED_SLOTS = 8
# Share of a limit of address space that stays free for everything else.
FREE_SHARE = 0.25
# Words of a slot: the record that counts, and how many lives have begun to go on from it.
LATEST, LIVES = 0, 1
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


def refuse_slot(fd: int, slot: int) -> None:
    """Say in an empty slot that no process can go on from it. Raises `OSError`."""
    # The first record is a small one, number 2, and what is there is zeros: a state of no bytes.
    os.pwrite(fd, _WORD.pack(2), slot * SLOT_BYTES + LATEST * _WORD.size)


def address_space_free() -> float:
    """Bytes that this process may map for slots; infinite without a limit (`ulimit -v`)."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * mmap.PAGESIZE
    return limit * (1 - FREE_SHARE) - used


@attrs.define(eq=False)
class SlotMappings:
    """The slots of a rank as its process sees them: mapped when the first one beside is used.

    What was mapped stays, as slots that were used are used again first.
    """

    fd: int
    # {number of the first slot divided by `MAPPED_SLOTS`: its mapping, the view of all of it}
    _mapped: dict[int, tuple[mmap.mmap, memoryview]] = attrs.field(factory=dict, init=False)

    def view(self, slot: int) -> memoryview:
        """The bytes of one slot, to be released before `close`.

        Raises `OSError` where no address space, or descriptor, is left; `ValueError` for other
        memory than slots.
        """
        run, place = divmod(slot, MAPPED_SLOTS)
        if run not in self._mapped:
            size = MAPPED_SLOTS * SLOT_BYTES
            if address_space_free() < size:
                raise OSError(errno.ENOMEM, "the limit of address space is near (ulimit -v)")
            mapping = mmap.mmap(self.fd, size, offset=run * size)
            mapping.madvise(mmap.MADV_NOHUGEPAGE)  # a slot uses two pages
            self._mapped[run] = mapping, memoryview(mapping)
        return self._mapped[run][1][place * SLOT_BYTES : (place + 1) * SLOT_BYTES]

    def close(self) -> None:
        """Unmap them."""
        for mapping, view in self._mapped.values():
            view.release()
            mapping.close()
        self._mapped.clear()


@contextmanager
def map_slots(fd: int) -> Iterator[SlotMappings]:
    """The slots in this memory, for as long as the block runs; the caller owns the descriptor."""
    mappings = SlotMappings(fd)
    try:
        yield mappings
    finally:
        mappings.close()
