"""Counter page: memory of a fleet's counter slots, which its processes write, sum, and outlive.

The fleet's owner makes one page for the whole run and passes it to each process with INIT. When a
process has ended, the owner retires its slot: its gauges end with it, its counters stay. The page's
size is sealed, and its memory is there from the beginning: nothing that a process does with it can
fault another one.
"""

import fcntl
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import attrs

from .counter_slot import (
    OWNER,
    SLOT_BYTES,
    WORD_BYTES,
    CounterSlot,
    Name,
    Numbers,
    Store,
    sum_slots,
)

_SIZE_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@attrs.frozen
class CounterMemory:
    """The side of the fleet's owner. `fd` is for the processes, with INIT."""

    fd: int

    def retire(self, place: int) -> None:
        """The process that had this place has ended. Harmless if there was none."""
        os.pwrite(self.fd, bytes(WORD_BYTES), place * SLOT_BYTES + OWNER * WORD_BYTES)


@contextmanager
def open_counter_memory(places: int) -> Iterator[CounterMemory]:
    """A new page with so many slots, for the body of the block. Raises `OSError`."""
    fd = os.memfd_create("triolet-counters", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, places * SLOT_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
        yield CounterMemory(fd)
    finally:
        os.close(fd)


@attrs.define(eq=False)
class CounterPage:
    """The side of one process: its own slot to write, and the sum of all."""

    _slots: list[memoryview]
    _own: CounterSlot

    @property
    def is_first(self) -> bool:
        """Whether no process with a lower place lives."""
        return next((slot for slot in self._slots if slot[OWNER]), None) is self._own.words

    def publish(self, numbers: Numbers) -> bool:
        """Store what this process counts now; whether any of it is new."""
        return self._store(self._own.change(numbers))

    def total(self) -> Counter[Name]:
        """The numbers of all processes, added up by name."""
        return sum_slots(self._slots, self._own.layout)

    def _store(self, stores: Iterable[Store]) -> bool:
        words, count = self._own.words, 0
        for index, word in stores:
            words[index] = word
            count += 1
        return count > 0


@contextmanager
def open_counter_page(fd: int, place: int, layout: int, numbers: Numbers) -> Iterator[CounterPage]:
    """The page with the slot of this place, which says `numbers` first, for the body of the block.

    The descriptor stays the caller's, who may close it at once. Raises `OSError` or `ValueError`
    for one that is no page with this place.
    """
    size = SLOT_BYTES // WORD_BYTES
    with (
        mmap.mmap(fd, 0) as memory,
        memoryview(memory) as view,
        view.cast("Q") as words,
        ExitStack() as owned,
    ):
        if len(words) % size or not 0 <= place < len(words) // size:
            raise ValueError(f"this page has no place {place}")
        slots = [
            owned.enter_context(words[first : first + size]) for first in range(0, len(words), size)
        ]
        own = CounterSlot(slots[place], layout)
        page = CounterPage(slots, own)
        page._store(own.begin(os.getpid(), numbers))
        try:
            yield page
        finally:
            page._store(own.end())
