"""Progress page: memory in which a process and its children show how far they are.

Their parent makes one page for each life of the process, and reads it (`hang_watch`). A slot of 64
bytes each: the first is the process's own, the others are its children's, by rank. What follows the
slots is the process's to write as it likes: of an engine, `engine.batch_table`. A slot's words:

    pid        of who writes here; 0: nothing does yet
    begun      number of the change of the four words that follow, stored before them
    step       the one that computes, or was taken last; 0: none
    since      when, in nanoseconds of CLOCK_MONOTONIC
    predicted  nanoseconds that it takes; 0: not known
    awaits     1 + slot of the process for which it waits within the step; 0: none
    passes     of its loop, times two; odd while the loop waits for something to do
    ended      as `begun`, stored after them: where they differ the slot is torn

Every word is stored by a single aligned store, and a slot is a cache line. The page's size is
sealed, and the reader copies it by a system call: nothing that a child does can fault the parent.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

SLOT_BYTES = 64
_SLOT = struct.Struct("8Q")
_PID, _BEGUN, _STEP, _SINCE, _PREDICTED, _AWAITS, _PASSES, _ENDED = range(8)
_SIZE_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@attrs.define(eq=False)
class ProgressSlot(trio.abc.Instrument):
    """A process's own slot. As an instrument of trio it counts the passes of the loop."""

    _words: memoryview
    _passes: int = attrs.field(default=1, init=False)

    def show_pid(self) -> None:
        """Have the slot count from now on; the loop waits for something to do."""
        self.show_step(0)  # it may have been another's before
        self._words[_PASSES] = self._passes
        self._words[_PID] = os.getpid()

    def show_step(self, step: int, since_ns: int = 0, predicted_ns: int = 0) -> None:
        """This step computes from now on; 0: none does."""
        words = self._words
        change = words[_ENDED] + 1
        words[_BEGUN] = change
        words[_STEP] = step
        words[_SINCE] = since_ns
        words[_PREDICTED] = predicted_ns
        words[_AWAITS] = 0
        words[_ENDED] = change

    def show_awaits(self, number: int | None) -> None:
        """Within the step it waits for the process whose slot has this number."""
        self._words[_AWAITS] = 0 if number is None else 1 + number

    def show_busy(self) -> None:
        """The loop has something to do."""
        self._passes = self._words[_PASSES] = (self._passes | 1) + 1

    def show_waiting(self) -> None:
        """The loop waits for something to do."""
        self._passes = self._words[_PASSES] = self._passes | 1

    def before_io_wait(self, timeout: float) -> None:  # of trio's loop
        self._passes = self._words[_PASSES] = self._passes | 1

    def after_io_wait(self, timeout: float) -> None:  # of trio's loop
        self._passes = self._words[_PASSES] = (self._passes | 1) + 1


@contextmanager
def passes_shown(slot: ProgressSlot) -> Iterator[None]:
    """Each pass of the loop of trio that runs shows in the slot, for the body of the block."""
    trio.lowlevel.add_instrument(slot)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(slot)
        slot.show_waiting()  # what follows is bounded by others


def private_slot() -> ProgressSlot:
    """A slot that no other process sees, for one that has no page."""
    return ProgressSlot(memoryview(bytearray(SLOT_BYTES)).cast("Q"))


@contextmanager
def open_slot(page_fd: int | None, number: int) -> Iterator[ProgressSlot]:
    """The slot of this process on its parent's page; a private one where there is none.

    Raises `OSError` or `ValueError` for a descriptor that is no page with this slot.
    """
    if page_fd is None:
        yield private_slot()
        return
    with mmap.mmap(page_fd, 0) as memory, memoryview(memory) as view, view.cast("Q") as words:
        first = number * _SLOT.size // 8
        with words[first : first + 8] as own:
            if len(own) < 8:
                raise ValueError(f"this page has no slot {number}")
            slot = ProgressSlot(own)
            slot.show_pid()
            yield slot


@attrs.frozen
class SlotState:
    """State of one slot. If `is_torn`, then `step`, `predicted_s` and `awaits` mean nothing."""

    pid: int = 0
    change: int = 0
    step: int = 0
    predicted_s: float = 0.0
    awaits: int | None = None
    passes: int = 1
    is_torn: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether its loop has something to do."""
        return self.passes % 2 == 0


@attrs.frozen(eq=False)
class ProgressPage:
    """The parent's side. `fd` is for the child, with INIT."""

    fd: int
    slots: int
    table_bytes: int

    def read(self) -> list[SlotState]:
        """Copy the state of all slots."""
        copy = os.pread(self.fd, self.slots * _SLOT.size, 0)
        return [_read_slot(*words) for words in _SLOT.iter_unpack(copy)]

    def read_table(self) -> bytes:
        """Copy the table behind the slots."""
        return os.pread(self.fd, self.table_bytes, self.slots * _SLOT.size)


@contextmanager
def open_page(slots: int, table_bytes: int = 0) -> Iterator[ProgressPage]:
    """A new page with so many slots, for the body of the block. Raises `OSError`."""
    fd = os.memfd_create("triolet-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, slots * _SLOT.size + table_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
        yield ProgressPage(fd, slots, table_bytes)
    finally:
        os.close(fd)


@contextmanager
def open_page_table(page_fd: int | None, offset: int, size: int) -> Iterator[memoryview | None]:
    """The `size` bytes at `offset` of the page, behind its slots, as their writer sees them.

    None without a page, or on one that has no room for them.
    """
    if page_fd is None:
        yield None
        return
    with mmap.mmap(page_fd, 0) as memory, memoryview(memory) as view:
        if len(view) < offset + size:
            yield None
            return
        with view[offset : offset + size] as table:
            yield table


def _read_slot(*words: int) -> SlotState:
    return SlotState(
        pid=words[_PID],
        change=words[_BEGUN],
        step=words[_STEP],
        predicted_s=words[_PREDICTED] / 1e9,
        awaits=words[_AWAITS] - 1 if words[_AWAITS] else None,
        passes=words[_PASSES],
        is_torn=words[_BEGUN] != words[_ENDED],
    )
