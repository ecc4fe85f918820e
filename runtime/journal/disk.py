"""Journal on disk: one file of a frontend, whose records outlive the server, and the machine.

Records are those of a journal in memory, at the same positions; its fill count is the file's size.
What a process has written is the kernel's, so that a process's death loses nothing. The death of
the machine leaves what was synced, and of what came later any sectors: so the reader goes to the
last good record, and what is behind that is cut off before the next one is written.

    sector 0      the header (`JournalHeader`), written once
    sectors 1, 2  checkpoints, in turn: crc of what follows (4) · 0 (4) · number (8) · begin (8) ·
                  boot id of the machine (16)
    sector 3      the stream that is being rebuilt (8)
    from the second segment on: records

The later whole checkpoint says where records begin. A new one is stored only when all that it
relies on is synced, snapshots above all; and what is before it is given back only when it is synced
itself. So a sync is one call, and what it has done is carried forward by the next.

Sans-IO: what to store, sync and give back goes to a `DiskFile`.
"""

import struct
from collections.abc import Callable
from typing import Final, Protocol, Self

import attrs
from crc32c import crc32c

from .reader import JournalContents, RecordWalk, read_into
from .records import (
    BEGIN_AT,
    FILL_AT,
    HEADER_BYTES,
    REBUILDING_AT,
    SEGMENT_BYTES,
    JournalHeader,
    JournalUnreadable,
)
from .streams import JournalStreams

# Sector of old disks; all others write a multiple of it wholly or not at all.
SECTOR_BYTES: Final = 512
DISK_REBUILDING_AT: Final = 3 * SECTOR_BYTES
DISK_HEADER_BYTES: Final = 4 * SECTOR_BYTES
# A file may end earlier; what is beyond is no position of any.
POSITION_MAX: Final = 2**62
_CRC: Final = struct.Struct("<I4x")
_CHECKPOINT: Final = struct.Struct("<QQ16s")
_WORD: Final = struct.Struct("<Q")
MACHINE_DIED: Final = "the machine was started anew, and what was not synced may be missing"


class DiskFile(Protocol):
    """A file, of which any number of bytes may be there."""

    def load(self, position: int, size: int) -> bytes:
        """Load these bytes, as far as there are any. Raises `OSError`."""

    def size(self) -> int:
        """Size of the file. Raises `OSError`."""

    def write(self, position: int, data: bytes) -> None:
        """Write these bytes, all of them. Raises `OSError`."""

    def truncate(self, size: int) -> None:
        """Make it as large. Raises `OSError`."""

    def sync(self) -> None:
        """Sync everything written to the disk. Blocks. Raises `OSError`."""

    def free(self, begin: int, end: int) -> None:
        """Give the space between back. May block. Raises `OSError`."""


@attrs.frozen
class Checkpoint:
    """Beginning of the records, as of a life in this boot of the machine."""

    number: int
    begin: int
    boot: bytes

    def encode(self) -> bytes:
        """Encode the checkpoint for its sector."""
        body = _CHECKPOINT.pack(self.number, self.begin, self.boot)
        return _CRC.pack(crc32c(body)) + body

    @property
    def position(self) -> int:
        """Position of its sector: the other one has the checkpoint before."""
        return (1 + self.number % 2) * SECTOR_BYTES

    @classmethod
    def of(cls, sector: bytes) -> Self | None:
        """Decode a sector; None if it is not whole."""
        body = sector[_CRC.size : _CRC.size + _CHECKPOINT.size]
        if len(body) < _CHECKPOINT.size or _CRC.unpack_from(sector)[0] != crc32c(body):
            return None
        return cls(*_CHECKPOINT.unpack(body))


def fresh_disk_journal(home: int, boot: bytes, segment_bytes: int = SEGMENT_BYTES) -> bytes:
    """The first sectors of an empty journal; its records begin behind its first segment."""
    checkpoint = Checkpoint(1, segment_bytes, boot)
    data = JournalHeader(home=home, segment_bytes=segment_bytes).fresh()
    data = data.ljust(checkpoint.position, b"\0") + checkpoint.encode()
    return data.ljust(DISK_HEADER_BYTES, b"\0")


def read_disk_header(file: DiskFile) -> tuple[JournalHeader, Checkpoint]:
    """Read a file's header and latest checkpoint. Raises `JournalUnreadable`, `OSError`."""
    data, size = file.load(0, DISK_HEADER_BYTES), file.size()
    header = JournalHeader.of(data[:HEADER_BYTES])
    sectors = [data[place * SECTOR_BYTES :][:SECTOR_BYTES] for place in (1, 2)]
    found = [each for each in map(Checkpoint.of, sectors) if each is not None]
    if not found or len(data) < DISK_HEADER_BYTES:
        raise JournalUnreadable("no checkpoint of the journal is whole")
    checkpoint = max(found, key=lambda each: each.number)
    if not DISK_HEADER_BYTES <= header.segment_bytes <= checkpoint.begin <= POSITION_MAX:
        raise JournalUnreadable(f"the journal begins at {checkpoint.begin}")
    (rebuilding,) = _WORD.unpack_from(data, DISK_REBUILDING_AT)
    begin = checkpoint.begin
    # Records are lost if the file's size was.
    fill = max(size, begin)
    return attrs.evolve(header, begin=begin, fill=fill, rebuilding=rebuilding), checkpoint


@attrs.frozen
class SyncOrder:
    """Sync the file, and then give this part of it back. A checkpoint with `begin` follows."""

    begin: int
    free_begin: int
    free_end: int

    def carry_out(self, file: DiskFile) -> None:
        """Blocks, and touches nothing but the file. Raises `OSError`."""
        file.sync()
        if self.free_begin < self.free_end:
            file.free(self.free_begin, self.free_end)


@attrs.define(eq=False)
class DiskJournal:
    """A writer's view of its file: the `JournalMemory` of it."""

    file: DiskFile
    boot: bytes
    header: JournalHeader
    # The checkpoint in the file, synced or not.
    _checkpoint: Checkpoint
    # Called when something is stored after all was synced.
    on_unsynced: Callable[[], None] = lambda: None
    # Nothing before it is needed, as the writer says.
    _begin: int = attrs.field(init=False)
    # The size of the file, as far as its records are good.
    _end: int = attrs.field(init=False)
    # Whole segments before it were given back; what a life before did not come to is again.
    _freed: int = attrs.field(init=False)
    # An order for all that was stored was given.
    is_synced: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._begin, self._end = self.header.begin, self.file.size()
        self._freed = self.header.segment_bytes

    @classmethod
    def read(
        cls, file: DiskFile, boot: bytes, on_unsynced: Callable[[], None] = lambda: None
    ) -> tuple[Self, JournalContents]:
        """Read the whole file, to go on behind it. Raises `JournalUnreadable`, `OSError`."""
        header, checkpoint = read_disk_header(file)
        walk = RecordWalk(file, header.begin, header.fill)
        contents = read_into(header, walk, JournalStreams())
        if checkpoint.boot != boot:
            fault = "; ".join(filter(None, (contents.fault, MACHINE_DIED)))
            contents = attrs.evolve(contents, fault=fault)
        return cls(file, boot, header, checkpoint, on_unsynced), contents

    # ---- what the writer says

    def load(self, position: int, size: int) -> bytes:
        return self.file.load(position, size)

    def store(self, position: int, data: bytes) -> None:
        """At the end. Raises `OSError`, and then the journal is to be given up."""
        self.file.write(position, data)
        self._end = position + len(data)
        self._note_unsynced()

    def publish(self, position: int, value: int) -> None:
        """A word. Raises `OSError`."""
        if position == FILL_AT:
            if value != self._end:
                self.file.truncate(value)
                self._end = value
                self._note_unsynced()
        elif position == BEGIN_AT:
            self._begin = value
            if value >= self._end:  # of what is there, nothing is needed: so it relies on nothing
                self._store_checkpoint()
        else:
            assert position == REBUILDING_AT
            self.file.write(DISK_REBUILDING_AT, _WORD.pack(value))
            self._note_unsynced()

    def free(self, begin: int, end: int) -> None:
        """Free this range once the checkpoint that follows it is synced."""

    # ---- syncing

    def begin_sync(self) -> SyncOrder:
        """Begin a sync of what is there now, while more may be stored. One at a time."""
        self.is_synced = True
        begin = self._checkpoint.begin
        return SyncOrder(self._begin, self._freed, begin - begin % self.header.segment_bytes)

    def end_sync(self, order: SyncOrder) -> None:
        """Note that a sync was carried out. Raises `OSError`."""
        self._freed = max(self._freed, order.free_end)
        checkpoint = self._checkpoint
        if order.begin > checkpoint.begin or checkpoint.boot != self.boot:
            self._store_checkpoint(max(order.begin, checkpoint.begin))

    def _store_checkpoint(self, begin: int | None = None) -> None:
        begin = self._begin if begin is None else begin
        checkpoint = Checkpoint(self._checkpoint.number + 1, begin, self.boot)
        self.file.write(checkpoint.position, checkpoint.encode())
        self._checkpoint = checkpoint
        self._note_unsynced()

    def _note_unsynced(self) -> None:
        if self.is_synced:
            self.is_synced = False
            self.on_unsynced()
