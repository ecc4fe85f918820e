"""Memory of a journal: one sparse memfd, made and held by the root, written by a frontend.

Positions in the journal are offsets in the file, which has room for more than is ever written; only
what was stored and not given back takes pages. Its size is sealed, so that no frontend can shrink
what its successor reads. A writer maps the header, and of the rest one segment at a time.

A word is published by assigning to an item of a `memoryview` of format "Q", which CPython stores by
one `mov` of eight bytes (`pack_single`, disassembled; ctypes and numpy do the same). `struct` is no
way to do it: with "<" it stores byte by byte, and in either format it clears the place first, which
another process has been seen to read.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from ...transports.sparse_memory import create_sparse_memory, punch_hole
from .records import HEADER_BYTES, REBUILDING_TERM_SHIFT, SEGMENT_BYTES, JournalHeader

# More than a frontend writes in any life: years at 100 MB/s.
SIZE_BYTES = 2**56
_WORD = struct.Struct("<Q")


def create_journal(home: int, segment_bytes: int = SEGMENT_BYTES) -> int:
    """The descriptor of an empty journal, the caller's to close. Raises `OSError`."""
    head = JournalHeader(home=home, segment_bytes=segment_bytes).fresh()
    return create_sparse_memory(f"triolet-journal-{home}", SIZE_BYTES, head)


def forget_rebuilding(fd: int, position: int, term: int) -> None:
    """The life of this term is gone and died of no stream: no next one is to find that it did.

    `position` is the word's that says which stream is rebuilt; that of an earlier life stays.
    Raises `OSError`.
    """
    (word,) = _WORD.unpack(os.pread(fd, _WORD.size, position))
    if word >> REBUILDING_TERM_SHIFT == term:
        os.pwrite(fd, _WORD.pack(0), position)


@attrs.frozen
class JournalFile:
    """Reads a journal by its descriptor, which the caller owns. System calls: nothing can fault."""

    fd: int

    def load(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position) if position < SIZE_BYTES else b""


@attrs.define(eq=False)
class MappedJournal:
    """A writer's view of a journal."""

    fd: int
    segment_bytes: int
    _words: memoryview
    # The segment that was written last; None before the first.
    _window: mmap.mmap | None = attrs.field(default=None, init=False)
    _window_begin: int = attrs.field(default=0, init=False)

    def store(self, position: int, data: bytes) -> None:
        """Into the segment that is mapped, or piece by piece into those that are to be.

        A process that gets no memory cannot map the next one: then by system calls, which need
        none. Raises `OSError`.
        """
        first = position - self._window_begin
        if self._window is not None and 0 <= first <= self.segment_bytes - len(data):
            self._window[first : first + len(data)] = data
            return
        done = 0
        while done < len(data):
            try:
                window = self._map(position + done)
            except OSError:
                done += os.pwrite(self.fd, data[done:], position + done)
                continue
            first = position + done - self._window_begin
            piece = data[done : done + self.segment_bytes - first]
            window[first : first + len(piece)] = piece
            done += len(piece)

    def load(self, position: int, size: int) -> bytes:
        """A copy, by a system call: rarely is it of the mapped segment. Raises `OSError`."""
        return JournalFile(self.fd).load(position, size)

    def publish(self, position: int, value: int) -> None:
        """Store an aligned word of the header."""
        self._words[position >> 3] = value

    def free(self, begin: int, end: int) -> None:
        """Punch a hole. Raises `OSError`."""
        punch_hole(self.fd, begin, end)

    def close(self) -> None:
        """Unmap what is mapped but the header."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _map(self, position: int) -> mmap.mmap:
        begin = position - position % self.segment_bytes
        if self._window is None or self._window_begin != begin:
            window = mmap.mmap(self.fd, self.segment_bytes, offset=begin)
            self.close()
            self._window, self._window_begin = window, begin
        return self._window


@contextmanager
def open_mapped_journal(fd: int, segment_bytes: int) -> Iterator[MappedJournal]:
    """To write; the caller owns the descriptor. Raises `OSError`, `ValueError`."""
    with (
        mmap.mmap(fd, mmap.PAGESIZE) as header,
        memoryview(header) as view,
        view.cast("Q") as words,
    ):
        assert len(view) >= HEADER_BYTES
        journal = MappedJournal(fd, segment_bytes, words)
        try:
            yield journal
        finally:
            journal.close()
