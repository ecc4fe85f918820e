"""The header that every message on a link begins with, and what each kind of it means.

Sans-IO: bytes to a `Header` and back. Must not know what to do about a header (`link`) nor how it
travels (`zmq_channel`, `memory_channel`).
"""

import enum
import struct

import attrs

from ..array import Frame

# kind, generation, sequence, acknowledged. Sequences are 64 bits wide and never wrap.
_HEADER = struct.Struct(">BHQQ")
HEADER_BYTES = _HEADER.size


class FrameKind(enum.IntEnum):
    """What a header asks of its receiver. Only DATA is followed by a payload."""

    DATA = 1
    LINK_UP = 2  # spoke -> hub: this generation begins; repeated until the hub has answered
    LINK_ACCEPT = 3  # hub -> spoke: the answer
    LINK_RESET = 4  # hub -> spoke: this generation is over, open the next; repeated until it comes
    ACK = 5
    PROBE = 6  # what I sent has been unacknowledged for long: acknowledge, or see that it was lost


_KINDS = {int(kind): kind for kind in FrameKind}


@attrs.frozen
class MalformedHeader(Exception):
    """Not a header of ours; the message is counted and dropped."""

    reason: str

    def __str__(self) -> str:
        return f"malformed link header: {self.reason}"


@attrs.define
class Header:
    """One header; a value, never changed (not frozen because one is made per message).

    `sequence` of DATA is its own number, from 1 in each generation and direction; of every other
    kind it is the number of the last DATA sent before it, so that any frame shows a lost tail.
    `acknowledged` is the last number received in order from the other side.
    """

    kind: FrameKind
    generation: int
    sequence: int
    acknowledged: int

    def encode(self) -> bytes:
        """`HEADER_BYTES` bytes, big endian."""
        return _HEADER.pack(self.kind, self.generation, self.sequence, self.acknowledged)

    def write_to(self, frame: bytearray) -> None:
        """Over the first `HEADER_BYTES` bytes of `frame`."""
        _HEADER.pack_into(frame, 0, self.kind, self.generation, self.sequence, self.acknowledged)


def decode_header(frame: Frame) -> Header:
    """The header that `frame` begins with.

    Raises `MalformedHeader` if it is too short or of an unknown kind.
    """
    try:
        kind_number, generation, sequence, acknowledged = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedHeader(f"shorter than {HEADER_BYTES} bytes") from None
    kind = _KINDS.get(kind_number)
    if kind is None:
        raise MalformedHeader(f"unknown kind {kind_number}")
    return Header(kind, generation, sequence, acknowledged)
