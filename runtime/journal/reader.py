"""Reader of a journal: from its bytes to the streams they tell of, whatever the bytes are.

It begins at the header's `begin` and stops at the fill count, or before the first record that is
not good: cut off, with a wrong checksum, out of order, of a lower term than the one before, or of a
class that it does not know. What it returns is true as of the record before that one; no token
beyond it is in it.

Of a stream that has ended only the head of its one record is decoded: there may be thousands, and
few are asked for again.

Sans-IO: bytes in, state out.
"""

from collections.abc import Iterator
from functools import partial

import attrs

from ...transports.codec import MalformedMessage
from ...transports.links.channel import Peer
from .envelope import HEAD_BYTES, JournalSource, RecordHead, RecordKind
from .records import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    SEGMENT_BYTES,
    JournalHeader,
    SnapshotHead,
    decode_payload,
    ended_head,
    load_snapshot,
)
from .streams import JournalStreams

# Half of what the format has room for; as many more are to come as anyone could write.
NUMBER_MAX = 2**63


@attrs.define(eq=False)  # a frozen class takes three times as long to make
class Record:
    """Good record, with its begin and end in the journal."""

    begin: int
    end: int
    number: int
    term: int
    # The sender of a message.
    sender: Peer
    is_message: bool
    content: object


@attrs.define(eq=False)
class RecordWalk:
    """Walks over records, from `position` to the fill count or the first that is not good."""

    source: JournalSource
    position: int
    fill: int
    # Bytes to load at a time.
    piece_bytes: int = SEGMENT_BYTES
    # The last good record's; terms never fall.
    number: int = attrs.field(default=0, init=False)
    term: int = attrs.field(default=0, init=False)
    # Why it stopped before the fill count; empty if it did not.
    fault: str = attrs.field(default="", init=False)
    _piece: memoryview = attrs.field(default=memoryview(b""), init=False)
    _piece_begin: int = attrs.field(default=0, init=False)

    def records(self) -> Iterator[Record]:
        """Each good record. When one has been taken, `position` is behind it."""
        while self.position < self.fill:
            record = self._next()
            if isinstance(record, str):
                self.fault = f"at {self.position}: {record}"
                return
            self.position, self.number, self.term = record.end, record.number, record.term
            yield record

    def _next(self) -> Record | str:
        """The record at the position, or why there is none."""
        first = self._view(HEAD_BYTES)
        if len(first) < HEAD_BYTES:
            return "a record's head is cut off"
        head = RecordHead.of(first)
        if head.payload_bytes > PAYLOAD_BYTES_MAX:
            return f"a record has {head.payload_bytes} bytes"
        size = HEAD_BYTES + head.payload_bytes
        whole = self._view(size)
        if len(whole) < size:
            return "a record is cut off"
        if not self._is_good(head, whole):
            return "a record's checksum is wrong"
        if self.number and head.number != self.number + 1:
            return f"record {head.number} follows {self.number}"
        if head.term < self.term:
            return f"term {head.term} follows {self.term}"
        payload = whole[HEAD_BYTES:]
        try:
            content = ended_head(head.kind, payload) or decode_payload(head.kind, payload)
        except MalformedMessage as error:
            return error.reason
        return Record(
            self.position,
            self.position + size,
            head.number,
            head.term,
            head.sender,
            head.kind == RecordKind.MESSAGE,
            content,
        )

    def _is_good(self, head: RecordHead, record: memoryview) -> bool:
        return head.is_of(record, self.position)

    def _view(self, size: int) -> memoryview:
        """View of so many bytes from the position on; fewer where there are not as many."""
        if size > self.fill - self.position:
            return memoryview(b"")
        first = self.position - self._piece_begin
        if first + size > len(self._piece):
            wanted = min(max(size, self.piece_bytes), self.fill - self.position)
            self._piece = memoryview(self.source.load(self.position, wanted))
            self._piece_begin, first = self.position, 0
        return self._piece[first : first + size]


@attrs.frozen(kw_only=True)
class JournalContents:
    """Contents of a journal up to `end`; `fault` says why that is before `fill`."""

    header: JournalHeader
    streams: JournalStreams
    end: int
    number: int
    term: int
    fault: str

    def is_before(self, term: int) -> bool:
        """Whether a life of this term may go on behind it: terms and numbers only grow."""
        return self.term < term and self.number < NUMBER_MAX


def read_journal(source: JournalSource) -> JournalContents:
    """Read a whole journal. Raises `JournalUnreadable` where even the header is none."""
    header = JournalHeader.of(source.load(0, HEADER_BYTES))
    reader = RecordWalk(source, header.begin, header.fill)
    streams = JournalStreams()
    return read_into(header, reader, streams)


def read_into(
    header: JournalHeader, reader: RecordWalk, streams: JournalStreams
) -> JournalContents:
    """Apply this reader's records to these streams."""
    for record in reader.records():
        place = record.begin, record.end - record.begin
        if record.is_message:
            streams.handle_message(record.sender, record.content)
        elif isinstance(record.content, SnapshotHead):
            streams.handle_ended(record.content, *place, partial(load_snapshot, reader.source))
        else:
            streams.handle_own(record.content, *place)
    return JournalContents(
        header=header,
        streams=streams,
        end=reader.position,
        number=reader.number,
        term=reader.term,
        fault=reader.fault,
    )
