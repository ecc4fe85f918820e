"""Envelope of a journal's record: head and checksum around a payload.

    crc of all that follows (4) · payload bytes (4) · number (8) · writer's term (8) ·
    sender's epoch (4) · sender's rank (2) · kind (1) · 0 (1) · payload

Sans-IO: bytes in, bytes out. `records` says what payloads are.
"""

import enum
import struct
from functools import lru_cache
from typing import Final, Protocol, Self

import attrs
from crc32c import crc32c

from ...transports.array import Frame
from ...transports.links.channel import Peer

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<IQQIHBx")
HEAD_BYTES: Final = _CRC.size + _HEAD.size
# A checksum begins with the record's position, so that no record counts anywhere else.
_SEED_BITS = 2**32 - 1


class JournalSource(Protocol):
    """Bytes of a journal. A part that is not there comes back short."""

    def load(self, position: int, size: int) -> bytes:
        """A copy of so many bytes. Raises `OSError`."""


class RecordKind(enum.IntEnum):
    """Whose payload it is."""

    MESSAGE = 1  # of an engine
    OWN = 2  # of the frontend


def seal(
    payload: Frame, kind: int, position: int, number: int, *, term: int, sender: Peer | None = None
) -> bytes:
    """The record around this payload that is to lie there."""
    epoch, rank = (0, 0) if sender is None else (sender.epoch, sender.rank)
    head = _HEAD.pack(len(payload), number, term, epoch, rank, kind)
    crc = crc32c(payload, crc32c(head, position & _SEED_BITS))
    return b"".join((_CRC.pack(crc), head, payload))


@attrs.define(eq=False)  # a frozen class takes three times as long to make
class RecordHead:
    """Head of a record, before its payload."""

    crc: int
    payload_bytes: int
    number: int
    term: int
    sender: Peer
    kind: int

    @classmethod
    def of(cls, data: memoryview) -> Self:
        """Decode a record's first bytes."""
        size, number, term, epoch, rank, kind = _HEAD.unpack_from(data, _CRC.size)
        return cls(_CRC.unpack_from(data)[0], size, number, term, engine_peer(rank, epoch), kind)

    def is_of(self, record: memoryview, position: int) -> bool:
        """Whether this is the whole record, as it was written there."""
        return crc32c(record[_CRC.size :], position & _SEED_BITS) == self.crc


def load_record(source: JournalSource, position: int, size: int) -> memoryview:
    """The payload of the record that was written there. Raises `OSError` if it is not there."""
    record = memoryview(source.load(position, size))
    if len(record) < size or not RecordHead.of(record).is_of(record, position):
        raise OSError(f"the record at {position} has changed")
    return record[HEAD_BYTES:]


# An engine's messages come in thousands; a spoiled sender must not be kept for ever.
@lru_cache(maxsize=64)
def engine_peer(rank: int, epoch: int) -> Peer:
    """The engine of this place and life."""
    return Peer("engine", rank, epoch)
