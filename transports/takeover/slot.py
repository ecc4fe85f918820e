"""Connection slot: what the next owner of a client's connection needs, in memory that outlives it.

Beside the socket, of which the root keeps a duplicate, each connection has a slot in memory that
the root holds. Its owner writes there before it writes to the socket, and reads the socket into it,
so that another process can go on in the middle of a message when the owner was killed:

- *Out*: the chunk that is being written, where it begins among all bytes ever written, and the
  state that follows it, whose meaning is the owner's. The kernel says how many bytes it has taken
  (`tcp.bytes_accepted`), so the successor writes the rest of the chunk and goes on from the state.
- *In*: bytes are received into a ring and stay until a state says that they are not needed. The
  kernel says how many were read (`tcp.bytes_read`), so that no count has to be stored with them.

A record (state and chunk) goes into one of two halves in turn and is published by one aligned
store, so that there is always a whole one. Chunks that need no new state are appended to it, each
with a note, if it changes the state in a way that its bytes do not show; one aligned store counts
them. That is what most writes of a stream cost. Small records lie beside the words, in the first
page: a connection without large messages has two pages in all.

Sans-IO: a `memoryview` in, bytes out.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Self

import attrs

from .memory import LATEST, LIVES, SLOT_BYTES

# Words, beside `LATEST` and `LIVES`: where what was appended ends, in each half.
_ENDS = 2
# A record: number of the chunk's first byte, input that is kept, where the ring begins, lengths,
# and its `EndForm`.
_RECORD = struct.Struct("<QQQIIB")
# Header of an appended record: input that is kept, lengths of a note and a chunk.
_APPENDED = struct.Struct("<QII")
# Half of the first page behind its words.
_SMALL_BEGIN, _SMALL_BYTES = 64, 2016
_INPUT_BEGIN, INPUT_BYTES = 2**20, 7 * 2**20
_LARGE_BEGIN, _LARGE_BYTES = 8 * 2**20, 4 * 2**20
# Limit of a state and its chunk together.
RECORD_BYTES_MAX = _LARGE_BYTES - _RECORD.size
assert _LARGE_BEGIN + 2 * _LARGE_BYTES <= SLOT_BYTES
assert _INPUT_BEGIN + INPUT_BYTES <= _LARGE_BEGIN


class EndForm(enum.IntEnum):
    """How a connection can be ended behind its record by one that does not know the state."""

    UNANSWERED = 0  # between two answers of HTTP: a request that came may have one
    CUT = 1  # by a reset alone: an end in order would look as if all had come
    EVENTS = 2  # between two chunks of HTTP, each of whole server-sent events
    FRAMES = 3  # between two frames of a WebSocket


@attrs.frozen
class SlotRecord:
    """Record that the owner published last. Output before the byte `begin` is written; then come
    `chunk`, then the chunks in `appended`, each with its note; `state` says what follows. Input
    from the byte `kept_from` on is still needed. A successor that does not go on ends the
    connection by `ending`."""

    begin: int
    chunk: bytes
    state: bytes
    kept_from: int
    appended: Sequence[tuple[bytes, bytes]] = ()
    ending: EndForm = EndForm.UNANSWERED

    @property
    def output(self) -> bytes:
        """Chunks joined."""
        return self.chunk + b"".join(chunk for _, chunk in self.appended)


@attrs.define(eq=False)
class ConnectionSlot:
    """Slot of a connection: `memory` are its bytes, all zero for a new connection."""

    memory: memoryview
    # Used bytes of the ring.
    input_bytes: int = attrs.field(default=INPUT_BYTES, init=False)
    _words: memoryview = attrs.field(init=False)
    # How often a record was published, times two, and whether it is a large one.
    _latest: int = attrs.field(init=False)
    # End of the latest record with its appended ones, and how far it may grow.
    _end: int = attrs.field(default=0, init=False)
    _end_max: int = attrs.field(default=0, init=False)
    # Input: the first byte that is kept, and the byte that lies where the ring begins.
    _kept_from: int = attrs.field(default=0, init=False)
    _ring_begin: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        assert len(self.memory) == SLOT_BYTES
        with self.memory[:_SMALL_BEGIN] as first:
            self._words = first.cast("Q")
        self._latest = self._words[LATEST]

    @classmethod
    def found(cls, memory: memoryview) -> Self:
        """The slot that another process has left. Raises `ValueError` if it makes no sense."""
        slot = cls(memory)
        if slot._latest:
            place = slot._place(slot._latest)
            _, kept_from, ring_begin, *sizes, _ = _RECORD.unpack_from(memory, place)
            if sum(sizes) > RECORD_BYTES_MAX or ring_begin > kept_from:
                raise ValueError("this slot was never written by an owner")
            slot._ring_begin = ring_begin
            record = slot.record()
            assert record is not None
            slot._kept_from = record.kept_from
        return slot

    # ---- records

    def record(self) -> SlotRecord | None:
        """The latest; None when there was none."""
        if not self._latest:
            return None
        place = self._place(self._latest)
        first = place + _RECORD.size
        begin, kept_from, _, state, chunk, ending = _RECORD.unpack(self.memory[place:first])
        data = bytes(self.memory[first : first + state + chunk])
        appended = list(self._appended(first + state + chunk))
        kept_from = appended[-1][0] if appended else kept_from
        said = tuple((note, each) for _, note, each in appended)
        return SlotRecord(begin, data[state:], data[:state], kept_from, said, EndForm(ending))

    def _appended(self, place: int) -> Iterator[tuple[int, bytes, bytes]]:
        end = self._words[_ENDS + (self._latest >> 1 & 1)]
        while place < end:
            first = place + _APPENDED.size
            kept_from, note, chunk = _APPENDED.unpack(self.memory[place:first])
            place = first + note + chunk
            if place > end:
                raise ValueError("what was appended to this slot makes no sense")
            data = bytes(self.memory[first:place])
            yield kept_from, data[:note], data[note:]

    def publish(
        self,
        begin: int,
        state: bytes,
        chunk: bytes | bytearray | memoryview,
        *,
        kept_from: int,
        received: int,
        room: int = 0,
        ending: EndForm = EndForm.UNANSWERED,
    ) -> bool:
        """Say what is written next and what follows; False, and nothing, if it is too large.

        Of the `received` input, what is before `kept_from` is not needed any more. So many bytes
        may be appended, or as many as are free beside a small record.
        """
        ring_begin = received if kept_from == received else self._ring_begin
        size = _RECORD.size + len(state) + len(chunk)
        if size > _LARGE_BYTES:
            return False
        is_small = size + room <= _SMALL_BYTES
        latest = (self._latest | 1) + (1 if is_small else 2)
        head = _RECORD.pack(begin, kept_from, ring_begin, len(state), len(chunk), ending)
        place = self._place(latest)
        end = place + size
        self.memory[place:end] = b"".join((head, state, chunk))
        self._words[_ENDS + (latest >> 1 & 1)] = end
        self._words[LATEST] = self._latest = latest
        self._kept_from, self._ring_begin = kept_from, ring_begin
        self._end = end
        self._end_max = place + (_SMALL_BYTES if is_small else min(size + room, _LARGE_BYTES))
        return True

    def append(self, note: bytes, chunk: bytes | bytearray | memoryview, *, kept_from: int) -> bool:
        """Say what is written next; False, and nothing, if it does not fit behind the record."""
        place = self._end
        end = place + _APPENDED.size + len(note) + len(chunk)
        if end > self._end_max:
            return False
        head = _APPENDED.pack(kept_from, len(note), len(chunk))
        self.memory[place:end] = b"".join((head, note, chunk))
        self._words[_ENDS + (self._latest >> 1 & 1)] = self._end = end
        self._kept_from = kept_from
        return True

    @staticmethod
    def _place(latest: int) -> int:
        half = latest >> 1 & 1
        if latest & 1:
            return _LARGE_BEGIN + half * _LARGE_BYTES
        return _SMALL_BEGIN + half * _SMALL_BYTES

    # ---- input

    def input_room(self, received: int, size: int) -> memoryview:
        """Memory to read the next input into, `size` at most; empty if the ring is full."""
        ring = self.input_bytes
        first = (received - self._ring_begin) % ring
        room = min(size, ring - first, ring - (received - self._kept_from))
        return self.memory[_INPUT_BEGIN + first : _INPUT_BEGIN + first + room]

    def kept_input(self, received: int) -> bytes:
        """Input that was received and is still needed. Raises `ValueError` where that cannot be."""
        size = received - self._kept_from
        if not 0 <= size <= self.input_bytes:
            raise ValueError(f"a slot cannot keep {size} bytes of input")
        first = (self._kept_from - self._ring_begin) % self.input_bytes
        end = min(first + size, self.input_bytes)
        ring = self.memory[_INPUT_BEGIN : _INPUT_BEGIN + self.input_bytes]
        return bytes(ring[first:end]) + bytes(ring[: size - (end - first)])

    def release(self) -> None:
        """Let go of the memory; nothing may be asked of the slot any more."""
        self._words.release()
        self.memory.release()

    # ---- lives

    @property
    def lives(self) -> int:
        """How many owners have begun to go on from the latest record and have not got anywhere."""
        return self._words[LIVES]

    @lives.setter
    def lives(self, count: int) -> None:
        self._words[LIVES] = count
