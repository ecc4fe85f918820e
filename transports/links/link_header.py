"""Header of the messages on a link; settings of a link; mishaps that are counted.

Sans-IO: bytes to a `Header` and back, and values. What to do about a header is `link`'s.
"""

import enum
import math
import struct

import attrs

from ..array import Frame

# kind, generation, sequence, acknowledged. Sequences are 64 bits wide and never wrap.
_HEADER = struct.Struct(">BIQQ")
HEADER_BYTES = _HEADER.size


class FrameKind(enum.IntEnum):
    """Kind of a header. Only DATA is followed by a payload."""

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
    """Header of a frame; a value, never changed (not frozen because one is made per message).

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


@attrs.frozen
class LinkSettings:
    """Times and bounds of a link. Both ends should have the same; nothing breaks if they differ."""

    # An ACK of its own after so many messages, or so long after the first that was not yet
    # acknowledged by the way. 1024 keeps far from the fuse below and wakes the sending thread
    # rarely (each time costs both ends a wake-up of two threads); 50 ms is far below a probe.
    ack_messages: int = 1024
    ack_delay_s: float = 0.05
    # A probe after 5 acknowledgement delays, doubling: 0.25, 0.5, 1, 2 s; given up after 3.75 s.
    probe_delay_s: float = 0.25
    probes_max: int = 3
    # Between machines: a probe to a peer that has said nothing for so long, and again; silent, and
    # said to be, once so many were not answered: after 1 s. On one host death is the kernel's news.
    silence_probe_s: float = math.inf
    silence_probes_max: int = 3
    # LINK_UP and LINK_RESET again, doubling. The cap bounds how long a returned peer waits.
    repeat_delay_s: float = 0.05
    repeat_delay_max_s: float = 1.0
    # A generation that ended younger than this makes the next wait, doubling up to the cap.
    calm_after_s: float = 1.0
    rest_delay_s: float = 0.01
    rest_delay_max_s: float = 1.0
    # A fuse: credits keep a link far below it, and it bounds every queue on the way.
    unacknowledged_max: int = 65536


class Mishap(enum.StrEnum):
    """Kind of a fault on a link that was put right; counted, for /metrics."""

    DUPLICATE = "duplicate"
    STALE = "stale"  # a header of another generation
    VIOLATION = "violation"  # a header that no sane peer sends to this side
    GAP = "gap"
    PROBE = "probe"  # what was sent has been unacknowledged for long
    GENERATION_ENDED = "generation_ended"
    MALFORMED = "malformed"  # header or message that could not be read
    STRAY = "stray"  # from a peer that is not, or no longer, ours
    UNWELCOME = "unwelcome"  # by a key, or a way, by which this rank does not come
    OVERFLOW = "overflow"  # a generation ended because its reader took no events
