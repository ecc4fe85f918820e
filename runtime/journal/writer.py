"""Writer of a journal: appends records, and keeps the journal short.

    begin                 oldest base ... latest base                    end (published: fill)
      | freed at next turn    | records, some of streams that ended        |

A stream's *base* is its admission or its latest snapshot, a named value's its latest record:
whatever precedes the oldest base is freed, whole segments of it. When the journal is longer than
`clean_above_bytes` its owner writes snapshots of the streams with the oldest bases (`due`), or
moves those that are one record, half a byte at most for each byte by which the journal grows, so
that it stays within about twice of what its streams need.

The order of stores is what makes it survive a SIGKILL between any two of them, or within one: a
record, then the fill count; the fill count behind a snapshot, then `begin`; `begin`, then the
memory before it is given back. x86-64 makes stores visible in the order of the program.

Sans-IO: what to store goes to a `JournalMemory`.
"""

from collections import OrderedDict
from typing import Final, Protocol

import attrs

from ...engine.messages import AddRequest
from ...transports.array import Frame
from ...transports.links.channel import Peer
from ..errors import JournalStreamTooLarge, Overloaded
from .envelope import JournalSource, RecordKind, load_record, seal
from .reader import JournalContents
from .records import (
    BEGIN_AT,
    FILL_AT,
    REBUILDING_AT,
    REBUILDING_TERM_SHIFT,
    AdmissionRecord,
    Deletion,
    JournalUnreadable,
    NamedValue,
    OwnRecord,
    RebuildDeath,
    Snapshot,
    encode_own,
    load_snapshot,
    rebuilding_word,
)
from .streams import JournalStreams

# The journal grows by so much between two turns of cleaning, of which each writes as much as half
# of that: some 0.1 ms of work at a time.
TURN_BYTES = 64 * 1024
# Small streams to clean at a turn.
TURN_STREAMS_MAX = 16
# At most, of a token in a snapshot; of a logprob with its token and rank; and of the names of their
# fields, as logprobs are one object.
_TOKEN_BYTES = 5
_LOGPROB_BYTES = 12
_FIELDS_BYTES = 48
# An enumeration's member takes 30 ns to look up.
_MESSAGE: Final = RecordKind.MESSAGE.value
_OWN: Final = RecordKind.OWN.value


class JournalMemory(JournalSource, Protocol):
    """Memory of a journal. Stores become visible to others in the order in which they are made."""

    def store(self, position: int, data: bytes) -> None:
        """Write these bytes, in any order. Raises `OSError`, and then has changed nothing known."""

    def publish(self, position: int, value: int) -> None:
        """Write one word by a single store."""

    def free(self, begin: int, end: int) -> None:
        """Give the memory between back; it reads as zeros, if at all."""


@attrs.frozen(kw_only=True)
class JournalLimits:
    """Bounds of a frontend's journal, in bytes."""

    # Size at which admission refuses. What was admitted goes on: credit and lengths bound it.
    bytes_max: int = attrs.field(default=256 * 2**20, validator=attrs.validators.ge(1))
    # The most that one stream may need: as much as its prompts' embeddings and logprobs may.
    stream_bytes_max: int = attrs.field(default=128 * 2**20, validator=attrs.validators.ge(1))
    # The next life reads as much before it serves: some 30 ms a MiB on a busy machine.
    clean_above_bytes: int = attrs.field(default=8 * 2**20, validator=attrs.validators.ge(0))
    turn_bytes: int = attrs.field(default=TURN_BYTES, validator=attrs.validators.ge(1))


@attrs.frozen
class JournalStatistics:
    """A moment of a journal."""

    number: int
    used_bytes: int
    streams: int


@attrs.define(eq=False)  # a frozen class takes three times as long to make
class _Base:
    position: int
    bytes: int


@attrs.define(eq=False)
class JournalWriter:
    """The only writer of a journal, in one term."""

    memory: JournalMemory
    segment_bytes: int
    term: int
    limits: JournalLimits = attrs.field(factory=JournalLimits)
    # The last record's number, and where the next one begins.
    number: int = attrs.field(default=0, kw_only=True)
    end: int = attrs.field(kw_only=True)
    # The published beginning: nothing before it is needed.
    begin: int = attrs.field(kw_only=True)
    # {name: base}, oldest first. (A plain dict takes long to its first item when many went.)
    _bases: OrderedDict[str, _Base] = attrs.field(factory=OrderedDict, init=False)
    # The journal's end at which the next turn of cleaning is due.
    _turn_at: int = attrs.field(default=0, init=False)

    @classmethod
    def resume(
        cls,
        memory: JournalMemory,
        contents: JournalContents,
        term: int,
        limits: JournalLimits | None = None,
    ) -> "JournalWriter":
        """Go on where a reader stopped: behind the last good record, in a later term.

        Memory that an earlier life did not come to give back is given back, and the stream that it
        was rebuilding when it died gets its `RebuildDeath`, in the contents too. Raises `OSError`.
        """
        assert term > contents.term, f"term {term} after {contents.term}"
        header = contents.header
        writer = cls(
            memory,
            header.segment_bytes,
            term,
            JournalLimits() if limits is None else limits,
            number=contents.number,
            end=contents.end,
            begin=header.begin,
        )
        writer._bases.update(_bases_of(contents.streams))
        if header.fill != contents.end:
            memory.publish(FILL_AT, contents.end)
        memory.free(header.segment_bytes, writer._floor(header.begin))
        writer._free()
        writer._note_death(contents)
        return writer

    @property
    def used_bytes(self) -> int:
        """Bytes from the oldest base to the end."""
        return self.end - self._oldest()

    def append_message(self, sender: Peer, frame: Frame) -> None:
        """Append an engine's message that the ledger has accepted, before a token of it is offered.

        The hot path: once for each message. Raises `OSError`, and then nothing was appended.
        """
        begin, number = self.end, self.number + 1
        record = seal(frame, _MESSAGE, begin, number, term=self.term, sender=sender)
        end = begin + len(record)
        self.memory.store(begin, record)
        self.memory.publish(FILL_AT, end)
        self.end, self.number = end, number

    def append(self, record: OwnRecord) -> None:
        """A record of the frontend's own.

        An admission at a bound raises `Overloaded` or `JournalStreamTooLarge`. Raises `OSError`,
        `MessageTooLarge`. In each case nothing was appended.
        """
        payload = encode_own(record)
        if isinstance(record, AdmissionRecord):
            self._judge(record, len(payload))
        begin = self.end
        self._write(seal(payload, _OWN, begin, self.number + 1, term=self.term))
        if isinstance(record, AdmissionRecord | Snapshot | NamedValue):
            self._rebase(record.name, begin)
        elif isinstance(record, Deletion):
            for name in record.names:
                self._bases.pop(name, None)
            self._free()

    def load_snapshot(self, name: str) -> Snapshot:
        """The record of a stream that has ended. Raises `JournalUnreadable`."""
        base = self._bases.get(name)
        if base is None:
            raise JournalUnreadable(f"the journal has nothing of {name}")
        return load_snapshot(self.memory, base.position, base.bytes)

    def move(self, name: str) -> None:
        """Append a copy of the record at its base, which has all of it.

        Raises `OSError` if that is not as it was written, too; then nothing was appended.
        """
        base, begin = self._bases[name], self.end
        payload = load_record(self.memory, base.position, base.bytes)
        self._write(seal(payload, _OWN, begin, self.number + 1, term=self.term))
        self._rebase(name, begin)

    def holds(self, name: str) -> bool:
        """Whether there is anything of this stream or value."""
        return name in self._bases

    def note_rebuilding(self, name: str | None) -> None:
        """This stream is rebuilt from now on, or none is: what the next life finds of our death."""
        self.memory.publish(REBUILDING_AT, 0 if name is None else rebuilding_word(self.term, name))

    def abandon(self) -> None:
        """Leave an empty journal: nothing is to be appended any more.

        What has ended can still be loaded in this life.
        """
        self.memory.publish(BEGIN_AT, self.end)

    @property
    def may_be_due(self) -> bool:
        """False most of the time; then `due` need not be asked."""
        return self.end >= self._turn_at

    def due(self) -> list[str]:
        """Names of streams whose snapshots, and of values that, are to be appended now.

        To be asked after each append, one that was refused with `Overloaded` included. Empty as
        long as the journal is short, or has hardly grown since the last time in this life.
        """
        if self.end < self._turn_at:
            return []
        room = self.limits.clean_above_bytes - self.used_bytes
        if room >= 0:
            self._turn_at = self.end + room + 1
            return []
        names, size = [], 0
        for name, base in self._bases.items():
            names.append(name)
            size += base.bytes
            if 2 * size >= self.limits.turn_bytes or len(names) == TURN_STREAMS_MAX:
                break
        # After small ones it comes sooner: else thousands of them would pin many times their size.
        is_short = len(names) == TURN_STREAMS_MAX
        self._turn_at = self.end + max(2 * size, 0 if is_short else self.limits.turn_bytes)
        return names

    def statistics(self) -> JournalStatistics:
        """Counts of this moment."""
        return JournalStatistics(self.number, self.used_bytes, len(self._bases))

    def check_invariants(self) -> None:
        """Bases are in order, and nothing that is needed was freed."""
        positions = [base.position for base in self._bases.values()]
        assert positions == sorted(set(positions))
        assert self.segment_bytes <= self.begin <= self._oldest() <= self.end
        if self._bases:
            assert self._floor(self._oldest()) == self._floor(self.begin)

    def _rebase(self, name: str, begin: int) -> None:
        """Move a stream's base to the last record, which has all of it."""
        before = self._bases.pop(name, None)
        self._bases[name] = _Base(begin, self.end - begin)
        if before is not None or len(self._bases) == 1:
            self._free()

    def _write(self, record: bytes) -> None:
        end = self.end + len(record)
        self.memory.store(self.end, record)
        self.memory.publish(FILL_AT, end)
        self.end = end
        self.number += 1

    def _note_death(self, contents: JournalContents) -> None:
        """Once for each death: where a later term than the word's has a record, that was first."""
        word = contents.header.rebuilding
        if not word:
            return
        term = word >> REBUILDING_TERM_SHIFT
        names = [name for name in contents.streams.streams if rebuilding_word(term, name) == word]
        if names and contents.term <= term:
            self.append(RebuildDeath(names[0]))
            contents.streams.streams[names[0]].rebuild_deaths += 1
        self.memory.publish(REBUILDING_AT, 0)

    def _judge(self, admission: AdmissionRecord, size: int) -> None:
        assert admission.name not in self._bases, f"{admission.name} was admitted before"
        prompt_tokens = len(admission.requests[0].prompt_token_ids)
        worst = size + sum(_worst_bytes(each, prompt_tokens) for each in admission.requests)
        if worst > self.limits.stream_bytes_max:
            raise JournalStreamTooLarge(worst, self.limits.stream_bytes_max)
        if self.used_bytes + size > self.limits.bytes_max:
            # Count the refusal as growth: else a journal that nothing grows would stay full.
            self._turn_at -= self.limits.turn_bytes
            raise Overloaded(limit="journal_bytes_max")

    def _oldest(self) -> int:
        for base in self._bases.values():
            return base.position
        return self.end

    def _floor(self, position: int) -> int:
        return position - position % self.segment_bytes

    def _free(self) -> None:
        """Give whole segments before the oldest base back, once that is published."""
        begin, freed = self._oldest(), self._floor(self.begin)
        if self._floor(begin) == freed:
            return
        self.memory.publish(BEGIN_AT, begin)
        self.begin = begin
        self.memory.free(freed, self._floor(begin))


def _bases_of(streams: JournalStreams) -> list[tuple[str, _Base]]:
    """Bases of everything found, the oldest first."""
    found = [
        *((name, _Base(each.base, each.base_bytes)) for name, each in streams.streams.items()),
        *((name, _Base(each.base, each.base_bytes)) for name, each in streams.values.items()),
    ]
    return sorted(found, key=lambda pair: pair[1].position)


def _worst_bytes(request: AddRequest, prompt_tokens: int) -> int:
    """Bytes that a choice's tokens and logprobs may take in a snapshot."""
    sampling = request.sampling
    size = _TOKEN_BYTES * (sampling.max_tokens or 0)
    for logprobs, tokens in (
        (sampling.logprobs, sampling.max_tokens or 0),
        (sampling.prompt_logprobs, prompt_tokens),
    ):
        if logprobs is not None:
            size += _FIELDS_BYTES + _LOGPROB_BYTES * (1 + logprobs) * tokens
    return size
