"""Memory of a journal in this process, which notes every store and can be cut off at each.

A contract test holds it to what the memfd does. What a SIGKILL leaves is what was stored before it:
`left_by` gives that for each store, with the last one torn in the ways in which a copy can be.
"""

from collections.abc import Iterator, Sequence
from random import Random

import attrs

from ...runtime.journal.records import JournalHeader
from ...runtime.journal.writer import JournalMemory


@attrs.frozen
class Stored:
    """Bytes were copied there."""

    position: int
    data: bytes

    def apply_to(self, memory: JournalMemory) -> None:
        """Do it there."""
        memory.store(self.position, self.data)


@attrs.frozen
class Published:
    """A word was stored by a single store."""

    position: int
    value: int

    def apply_to(self, memory: JournalMemory) -> None:
        """Do it there."""
        memory.publish(self.position, self.value)


@attrs.frozen
class Freed:
    """The memory between was given back."""

    begin: int
    end: int

    def apply_to(self, memory: JournalMemory) -> None:
        """Do it there."""
        memory.free(self.begin, self.end)


Store = Stored | Published | Freed


@attrs.define(eq=False)
class NotedMemory:
    """A journal's memory as a run of bytes."""

    data: bytearray
    stores: list[Store] = attrs.field(factory=list)

    @classmethod
    def fresh(cls, segment_bytes: int, home: int = 0) -> "NotedMemory":
        """An empty journal. Segments may be of any size that holds the header."""
        header = JournalHeader(home=home, segment_bytes=segment_bytes).fresh()
        return cls(bytearray(header.ljust(segment_bytes, b"\0")))

    def load(self, position: int, size: int) -> bytes:
        """A copy; what was never stored is not there."""
        return bytes(self.data[position : position + size])

    def store(self, position: int, data: bytes) -> None:
        """Note it, and do it."""
        self._do(Stored(position, bytes(data)))

    def publish(self, position: int, value: int) -> None:
        """Note it, and do it."""
        self._do(Published(position, value))

    def free(self, begin: int, end: int) -> None:
        """Note it, and do it."""
        if begin < end:
            self._do(Freed(begin, end))

    def _do(self, store: Store) -> None:
        self.stores.append(store)
        apply_store(self.data, store)


def apply_store(data: bytearray, store: Store) -> None:
    """Change the bytes as this store does."""
    match store:
        case Stored(position=position, data=what):
            data.extend(bytes(max(0, position + len(what) - len(data))))
            data[position : position + len(what)] = what
        case Published(position=position, value=value):
            data[position : position + 8] = value.to_bytes(8, "little")
        case Freed(begin=begin, end=end):
            data[begin:end] = bytes(max(0, min(end, len(data)) - begin))


def left_by(before: bytes, stores: Sequence[Store], chance: Random) -> Iterator[bytes]:
    """Memory as it is when its writer is killed before, within and after each of these stores."""
    data = bytearray(before)
    for store in stores:
        yield bytes(data)
        for part in torn(store, chance):
            spoiled = bytearray(data)
            apply_store(spoiled, part)
            yield bytes(spoiled)
        apply_store(data, store)
    yield bytes(data)


def torn(store: Store, chance: Random) -> Iterator[Store]:
    """A copy or a punch that did not come to its end; a single store cannot be torn."""
    match store:
        case Stored(position=position, data=data):
            for size in {1, len(data) // 2, len(data) - 1}:
                yield Stored(position, data[:size])
                yield Stored(position + size, data[size:])
            drawn = bytes(byte if chance.random() < 0.5 else 0 for byte in data)
            yield Stored(position, drawn)
        case Freed(begin=begin, end=end):
            middle = (begin + end) // 2
            yield Freed(begin, middle)
            yield Freed(middle, end)
        case Published():
            pass
