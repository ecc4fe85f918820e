"""Disk of a journal in this process, whose power can be cut: unsynced sectors are lost at random.

A contract test holds it to what a file does. Since the last sync each sector may have been written
back at any time, so that a cut leaves any of its contents since then; the size and what was given
back were or were not noted by the file system.
"""

import errno
import os
from random import Random

import attrs

from ...runtime.journal.disk import SECTOR_BYTES, fresh_disk_journal

PLAIN_BYTES_MAX = 2**22


@attrs.define(eq=False)
class SectorDisk:
    """A file as sectors, each with all its contents since the last sync, the latest last."""

    _sectors: dict[int, list[bytes]] = attrs.field(factory=dict, init=False)
    _sizes: list[int] = attrs.field(factory=lambda: [0], init=False)
    # An error that the next write, or sync, raises.
    failure: OSError | None = attrs.field(default=None, init=False)

    @classmethod
    def fresh(cls, segment_bytes: int, boot: bytes, home: int = 0) -> "SectorDisk":
        """An empty journal, synced."""
        disk = cls()
        disk.write(0, fresh_disk_journal(home, boot, segment_bytes))
        disk.truncate(segment_bytes)
        disk.sync()
        return disk

    def load(self, position: int, size: int) -> bytes:
        """Load as many of the bytes as there are."""
        size = max(0, min(size, self.size() - position))
        first, stop = position // SECTOR_BYTES, -(-(position + size) // SECTOR_BYTES)
        whole = b"".join(self._sector(place) for place in range(first, stop))
        return whole[position % SECTOR_BYTES :][:size]

    def size(self) -> int:
        """Size without a cut."""
        return self._sizes[-1]

    def write(self, position: int, data: bytes) -> None:
        """At once, for every reader; a cut may lose it."""
        self._fail()
        done = 0
        while done < len(data):
            place, offset = divmod(position + done, SECTOR_BYTES)
            piece, before = data[done : done + SECTOR_BYTES - offset], self._sector(place)
            self._put(place, before[:offset] + piece + before[offset + len(piece) :])
            done += len(piece)
        if position + len(data) > self.size():
            self._sizes.append(position + len(data))

    def truncate(self, size: int) -> None:
        """Truncate; bytes behind read as zeros, should the file grow again."""
        if size < self.size():
            place, offset = divmod(size, SECTOR_BYTES)
            if offset:
                self._put(place, self._sector(place)[:offset].ljust(SECTOR_BYTES, b"\0"))
                place += 1
            for later in [each for each in self._sectors if each >= place]:
                self._put(later, bytes(SECTOR_BYTES))
        self._sizes.append(size)

    def sync(self) -> None:
        """No cut changes anything of before."""
        self._fail()
        self._sectors = {place: contents[-1:] for place, contents in self._sectors.items()}
        del self._sizes[:-1]

    def free(self, begin: int, end: int) -> None:
        """Free a range, which reads as zeros."""
        for place in range(begin // SECTOR_BYTES, end // SECTOR_BYTES):
            if place in self._sectors:
                self._put(place, bytes(SECTOR_BYTES))

    def cut(self, chance: Random) -> "SectorDisk":
        """Draw what is there when the machine runs again."""
        left = SectorDisk()
        size = left._sizes[0] = chance.choice(self._sizes)
        for place, contents in self._sectors.items():
            if place * SECTOR_BYTES < size:
                left._sectors[place] = [chance.choice(contents)]
        return left

    def copy(self) -> "SectorDisk":
        """Copy the whole, as another process finds it."""
        same = SectorDisk()
        same._sectors = {place: list(contents) for place, contents in self._sectors.items()}
        same._sizes = list(self._sizes)
        return same

    def used_bytes(self) -> int:
        """Bytes of sectors that are not all zeros."""
        return SECTOR_BYTES * sum(any(contents[-1]) for contents in self._sectors.values())

    def _sector(self, place: int) -> bytes:
        return self._sectors[place][-1] if place in self._sectors else bytes(SECTOR_BYTES)

    def _put(self, place: int, data: bytes) -> None:
        self._sectors.setdefault(place, [bytes(SECTOR_BYTES)]).append(data)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@attrs.define(eq=False)
class PlainDisk:
    """A file as a run of bytes, without cuts: for many files that are read once.

    Larger than `PLAIN_BYTES_MAX` it cannot be, as files of a real disk have a bound.
    """

    data: bytearray

    def load(self, position: int, size: int) -> bytes:
        return bytes(self.data[position : position + size])

    def size(self) -> int:
        return len(self.data)

    def write(self, position: int, data: bytes) -> None:
        """Write; bytes between the end and there read as zeros. Raises `OSError`."""
        self._grow_to(position + len(data))
        self.data.extend(bytes(max(0, position + len(data) - len(self.data))))
        self.data[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        """Shorter, or longer by zeros. Raises `OSError`."""
        self._grow_to(size)
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        """There is nothing to lose."""

    def free(self, begin: int, end: int) -> None:
        """Free a range, which reads as zeros."""
        end = min(end, len(self.data))
        self.data[begin:end] = bytes(max(0, end - begin))

    def _grow_to(self, size: int) -> None:
        if size > PLAIN_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
