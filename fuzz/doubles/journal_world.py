"""World of the journal's fuzzer: a writer over noted memory, and what its records say.

The world's own notes are what a reader must find: after each record a copy is kept by the record's
term and number. `journal_acts` is what happens to it.
"""

from collections import Counter
from random import Random

import attrs

from ...engine.messages import StepOutputs
from ...runtime.journal.reader import JournalContents, RecordWalk, read_into
from ...runtime.journal.records import FILL_AT, HEADER_BYTES, JournalHeader, OwnRecord
from ...runtime.journal.streams import JournalStreams
from ...runtime.journal.writer import JournalLimits, JournalWriter
from ...transports.links.channel import Peer
from .journal_memory import NotedMemory, left_by
from .journal_notes import MESSAGES, ChoiceNote, StreamNote, Truth, ValueNote, truth_of

SEGMENT_BYTES = 256
LIMITS = JournalLimits(
    bytes_max=6 * 1024, stream_bytes_max=4096, clean_above_bytes=1024, turn_bytes=256
)


@attrs.frozen(kw_only=True)
class Parts:
    """Machines under test, or ones with a planted fault."""

    writer: type[JournalWriter] = JournalWriter
    reader: type[RecordWalk] = RecordWalk
    streams: type[JournalStreams] = JournalStreams


@attrs.define(eq=False)
class JournalWorld:
    """Journal of a frontend through several lives."""

    parts: Parts
    memory: NotedMemory = attrs.field(factory=lambda: NotedMemory.fresh(SEGMENT_BYTES))
    writer: JournalWriter = attrs.field(init=False)
    notes: dict[str, StreamNote | ValueNote] = attrs.field(factory=dict)
    # {(term, number): what is true then}, and which of them a fill count means.
    history: dict[tuple[int, int], Truth] = attrs.field(factory=dict)
    ends: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    # {(term, number): {name: lives that died while they rebuilt it}}, and {word of the header: life
    # that stored it, name}.
    deaths: dict[tuple[int, int], dict[str, frozenset[int]]] = attrs.field(factory=dict)
    rebuilding: dict[int, tuple[int, str]] = attrs.field(factory=dict)
    # The memory at the beginning of the stores that are noted.
    before: bytes = b""
    reached: Counter[str] = attrs.field(factory=Counter)
    term: int = 0
    # The journal's end at which, if it is long, another turn of cleaning is due.
    turn_at: int = 0
    count: int = 0
    attempts: int = 0

    def __attrs_post_init__(self) -> None:
        self.history[0, 0], self.deaths[0, 0] = {}, {}
        self.resume(self.read(self.memory))

    # ---- reading

    def look(self) -> None:
        """Read all stores so far, each left as a kill leaves it."""
        for data in left_by(self.before, self.memory.stores, Random(1)):
            self.judge_left(data, self.read(NotedMemory(bytearray(data))))

    def read(self, memory: NotedMemory) -> JournalContents:
        """By the reader that is tried."""
        header = JournalHeader.of(memory.load(0, HEADER_BYTES))
        reader = self.parts.reader(memory, header.begin, header.fill, piece_bytes=300)
        streams = self.parts.streams()
        contents = read_into(header, reader, streams)
        streams.check_invariants()
        return contents

    def judge_left(self, data: bytes, contents: JournalContents) -> None:
        """Exactly the records that were published, and all of them."""
        fill = int.from_bytes(data[FILL_AT : FILL_AT + 8], "little")
        assert not contents.fault, contents.fault
        assert contents.end == fill
        if contents.number:
            assert (contents.term, contents.number) == self.ends[fill]
        assert self.found(contents) == self.history[contents.term, contents.number]

    def found(self, contents: JournalContents) -> Truth:
        """Streams and values that were read, to compare."""
        return truth_of(contents.streams)

    # ---- writing

    def resume(self, contents: JournalContents) -> None:
        """The next life of the frontend goes on behind what was read."""
        life, name = self.rebuilding.get(contents.header.rebuilding, (0, ""))
        note = self.notes.get(name)
        self.term += 1
        self.turn_at = 0
        self.before, self.memory.stores = bytes(self.memory.data), []
        self.writer = self.parts.writer.resume(self.memory, contents, self.term, LIMITS)
        self.ends[contents.end] = (contents.term, contents.number)
        is_news = isinstance(note, StreamNote) and life not in note.deaths
        assert self.writer.number == contents.number + is_news
        if isinstance(note, StreamNote) and is_news:
            note.deaths.add(life)
            self.reached["rebuild death"] += 1
            self._note_only()
            assert self.found(contents) == self.history[self.term, self.writer.number]
            self._die_again()

    def _die_again(self) -> None:
        """The life that notes a death may die at each of its stores: the next one finds it once."""
        for data in left_by(self.before, self.memory.stores, Random(1)):
            memory = NotedMemory(bytearray(data))
            self.parts.writer.resume(memory, self.read(memory), self.term + 1, LIMITS)
            found = self.found(self.read(memory))
            assert found == self.history[self.writer.term, self.writer.number]

    def append(self, record: OwnRecord) -> None:
        """A record of the frontend's own, which the notes say already."""
        self.writer.append(record)
        self.note()

    def send(self, peer: Peer, message: StepOutputs | None) -> None:
        """Append an engine's message, if any; the notes have its tokens already."""
        if message is not None:
            self.writer.append_message(peer, bytes(MESSAGES.encode(message)[0]))
            self.note()

    def note(self) -> None:
        """Note the truth as of the record that was just written; then its owner cleans."""
        self._note_only()
        self.clean()

    def clean(self) -> None:
        """Half a byte for each byte by which a long journal grows, or a turn's for one refused."""
        writer, limits = self.writer, LIMITS
        names = writer.due()
        if names:
            self.reached["cleaned by a later life"] += self.turn_at == 0 and self.term > 1
            size = sum(self.notes[name].base_bytes for name in names)
            self.turn_at = writer.end + max(2 * size, limits.turn_bytes)
        else:
            assert writer.used_bytes <= limits.clean_above_bytes or writer.end < self.turn_at
        for name in names:
            note = self.notes[name]
            note.base = writer.end
            if note.is_one_record:
                writer.move(name)
            else:
                writer.append(note.snapshot())
            note.base_bytes = writer.end - note.base
            self.reached["moved" if note.is_one_record else "snapshot"] += 1
            self._note_only()
        self.reached["freed"] = writer.begin // SEGMENT_BYTES

    def _note_only(self) -> None:
        key = (self.writer.term, self.writer.number)
        self.history[key] = {name: note.seen() for name, note in self.notes.items()}
        self.deaths[key] = {name: frozenset(note.deaths) for name, note in self.notes.items()}
        self.ends[self.writer.end] = key

    # ---- notes

    def live(self) -> list[ChoiceNote]:
        """Choices that are not over."""
        choices = [
            choice
            for note in self.notes.values()
            if isinstance(note, StreamNote) and note.said is None
            for choice in note.choices
        ]
        return [choice for choice in choices if choice.finish is None and choice.end is None]

    def choice(self, which: int) -> ChoiceNote | None:
        """Choose among the live choices, if there are any."""
        live = self.live()
        return live[which % len(live)] if live else None

    def name(self, which: int) -> str:
        """A stream's, or a value's, if there is any."""
        names = list(self.notes)
        return names[which % len(names)] if names else ""
