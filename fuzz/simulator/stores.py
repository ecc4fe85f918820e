"""Stores of a simulated process to memory that outlives it: it may die between any two, or in one.

Writers store by assignment to slices of their `memory`, journals by the calls of `JournalMemory`.
That is the real one until a death at a store is planned, and goes nowhere when the process is dead,
whatever its tasks still do.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import attrs

from ...engine.block_names import BlockNames
from ...runtime.journal.memory import open_mapped_journal
from ...runtime.journal.records import REBUILDING_AT, JournalHeader
from ..doubles.journal_memory import Freed, Published, Store, Stored, torn

# A page, the least that can be mapped alone.
JOURNAL_SEGMENT_BYTES = 4096


def _leave() -> None:
    """Nothing of a store or a call is made at which its process dies."""


@attrs.define(eq=False)
class Stores:
    """Of one process, to all memory that it shares with who comes after it, or looks at it."""

    _writers: list[Any] = attrs.field(factory=list, init=False)
    _is_planned: bool = attrs.field(default=False, init=False)
    # So many are still made before the death, which leaves half of the next one's bytes, or none.
    _left: float = attrs.field(default=math.inf, init=False)
    _is_torn: bool = attrs.field(default=False, init=False)
    _die: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    # Whether the death was at a store, or is.
    is_fatal: bool = attrs.field(default=False, init=False)
    # Whether the process is dead.
    is_over: bool = attrs.field(default=False, init=False)
    # Made since a death was planned; system calls are counted as stores are.
    made: int = attrs.field(default=0, init=False)

    def add(self, writer: Any) -> None:
        """It stores to its `memory` from now on."""
        self._writers.append(writer)
        if self._is_planned:
            writer.memory = _WatchedMemory(writer.memory, self)

    def watch(self, memory: Any) -> "_WatchedMemory":
        """Memory that the process stores to: bytes, or words."""
        return _WatchedMemory(memory, self)

    def plan_death(self, after: float, die: Callable[[], None], *, is_torn: bool) -> None:
        """Call `die` in the place of a store, when so many more are made."""
        self._left, self._die, self._is_torn = after, die, is_torn
        if not self._is_planned:
            self._is_planned = True
            for writer in self._writers:
                writer.memory = _WatchedMemory(writer.memory, self)

    def end(self) -> None:
        """The process is dead."""
        self.is_over = True
        for writer in self._writers:
            writer.memory = _Nowhere()

    def store(self, make: Callable[[], None], tear: Callable[[], None] = _leave) -> None:
        """One store, or system call, of the process, whole or not; none after its death."""
        if self.is_over or self.is_fatal:
            return  # a writer in the midst of several still has the memory of before
        if self._left:
            self._left -= 1
            self.made += self._is_planned
            make()
            return
        if self._is_torn:
            tear()
        self.is_fatal = True
        self._die()


@attrs.define(eq=False)
class WatchedJournal:
    """The journal of a process, as its writer sees it: see `JournalMemory`."""

    memory: Any
    # Hears which stream is rebuilt from now on, as the header says it.
    on_rebuilding: Callable[[int], None]

    def load(self, position: int, size: int) -> bytes:
        """A copy of so many bytes."""
        loaded: bytes = self.memory.load(position, size)
        return loaded

    def store(self, position: int, data: bytes) -> None:
        """Write these bytes."""
        self.memory.store(position, data)

    def publish(self, position: int, value: int) -> None:
        """Write one word."""
        self.memory.publish(position, value)
        if position == REBUILDING_AT and value:
            self.on_rebuilding(value)

    def free(self, begin: int, end: int) -> None:
        """Give the memory between back."""
        self.memory.free(begin, end)


@attrs.define(eq=False)
class _WatchedMemory:
    """The memory of a process that will die at a store."""

    memory: Any
    stores: Stores

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, part: slice | int) -> Any:
        return self.memory[part]

    def __setitem__(self, part: slice | int, data: Any) -> None:
        if isinstance(part, int):  # a word, which is stored in one
            return self.stores.store(lambda: self.memory.__setitem__(part, data))
        begin, half = part.indices(len(self.memory))[0], len(data) // 2

        def make(size: int = len(data)) -> None:
            self.memory[begin : begin + size] = data[:size]

        return self.stores.store(make, lambda: make(half))

    def release(self) -> None:
        self.memory.release()

    def load(self, position: int, size: int) -> Any:
        return self.memory.load(position, size)

    def store(self, position: int, data: bytes) -> None:
        self._make(Stored(position, data))

    def publish(self, position: int, value: int) -> None:
        self._make(Published(position, value))

    def free(self, begin: int, end: int) -> None:
        self._make(Freed(begin, end))

    def _make(self, store: Store) -> None:
        def tear() -> None:
            ways = list(torn(store, chance := Random(str(store))))
            if ways:
                chance.choice(ways).apply_to(self.memory)

        self.stores.store(lambda: store.apply_to(self.memory), tear)


class _Nowhere:
    """The memory of a dead process: large enough for any writer, and nobody's."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, part: slice) -> bytes:
        return bytes(len(range(*part.indices(len(self)))))

    def __setitem__(self, part: slice, data: bytes) -> None:
        pass

    def load(self, position: int, size: int) -> bytes:
        return b""

    def store(self, position: int, data: bytes) -> None:
        pass

    def publish(self, position: int, value: int) -> None:
        pass

    def free(self, begin: int, end: int) -> None:
        pass


def watch_names(stores: Stores, memory: memoryview, head: bytes) -> BlockNames:
    """Names of blocks: what a dead process stores there is not seen."""
    names = BlockNames(memory, head)
    stores.add(names)
    return names


def divide_journal(fd: int, home: int) -> None:
    """Give a journal that is new small segments, so that some are given back."""
    fresh = JournalHeader(home=home).fresh()
    if os.pread(fd, len(fresh), 0) == fresh:
        small = JournalHeader(home=home, segment_bytes=JOURNAL_SEGMENT_BYTES).fresh()
        os.pwrite(fd, small, 0)


@contextmanager
def open_watched_journal(
    stores: Stores, on_rebuilding: Callable[[int], None], fd: int, segment_bytes: int
) -> Iterator[WatchedJournal]:
    """A journal's memory: what a dead process stores there is not seen."""
    with open_mapped_journal(fd, segment_bytes) as memory:
        watched = WatchedJournal(memory, on_rebuilding)
        stores.add(watched)
        yield watched
