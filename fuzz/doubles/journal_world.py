"""World of the journal's fuzzer: a writer over noted memory, and what its records say.

The world's own notes are what a reader must find: after each record a copy is kept by the record's
term and number. Engines also say what the ledger refuses, in the same messages; that never counts.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

import attrs

from ...engine.errors import EngineDraining
from ...engine.messages import AddRequest, FinishReason, StepOutputs
from ...engine.sampling_params import SamplingParams
from ...runtime.errors import Overloaded
from ...runtime.journal.reader import JournalContents, RecordWalk, read_into
from ...runtime.journal.records import (
    FILL_AT,
    HEADER_BYTES,
    AdmissionRecord,
    ChoiceEnd,
    ClientCredit,
    Deletion,
    EngineLife,
    JournalHeader,
    JournalUnreadable,
    OwnRecord,
    Placement,
    RecordKind,
    StreamEnd,
    encode_own,
    seal,
)
from ...runtime.journal.streams import JournalStreams
from ...runtime.journal.writer import JournalLimits, JournalWriter
from ...transports.links.channel import Peer
from ..drawing import mutate
from .journal_memory import NotedMemory, left_by
from .journal_notes import (
    LOGPROBS,
    MESSAGES,
    ChoiceNote,
    StreamNote,
    Truth,
    draw_payload,
    notes_of,
    seen_of,
)

SEGMENT_BYTES = 256
LIMITS = JournalLimits(
    bytes_max=6 * 1024, stream_bytes_max=4096, clean_above_bytes=1024, turn_bytes=256
)
STREAMS_MAX = 4
PEERS = (Peer("engine", 0, 1), Peer("engine", 1, 1), Peer("engine", 1, 2))


@attrs.frozen
class Act:
    """What happens, to whichever stream or engine `which` comes out at."""

    what: str
    which: int
    seed: int


@attrs.frozen(kw_only=True)
class Parts:
    """What is tried: the machines, or ones with a planted fault."""

    writer: type[JournalWriter] = JournalWriter
    reader: type[RecordWalk] = RecordWalk
    streams: type[JournalStreams] = JournalStreams


@attrs.define(eq=False)
class JournalWorld:
    """One frontend's journal through several lives."""

    parts: Parts
    memory: NotedMemory = attrs.field(factory=lambda: NotedMemory.fresh(SEGMENT_BYTES))
    writer: JournalWriter = attrs.field(init=False)
    notes: dict[str, StreamNote] = attrs.field(factory=dict)
    # {(term, number): what is true then}, and which of them a fill count means.
    history: dict[tuple[int, int], Truth] = attrs.field(factory=dict)
    ends: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    # The memory at the beginning of the stores that are noted.
    before: bytes = b""
    reached: Counter[str] = attrs.field(factory=Counter)
    count: int = 0
    attempts: int = 0

    def __attrs_post_init__(self) -> None:
        self.history[0, 0] = {}
        self._resume(self.read(self.memory))

    def apply(self, act: Act) -> None:
        """One act; acts that have no object do nothing."""
        ACTS[act.what](self, act.which, Random(act.seed))
        self.writer.check_invariants()

    # ---- what a frontend writes

    def admit(self, which: int, chance: Random) -> None:
        """A new stream, unless there is no room."""
        self.count += 1
        name = f"s{self.count}"
        sampling = SamplingParams(max_tokens=20, seed=1)
        requests = [
            AddRequest(
                request_id=f"{name}#{number}",
                attempt=0,
                prompt_token_ids=[1] * (1 + which % 9),
                sampling=sampling,
            )
            for number in range(chance.choice([1, 1, 2]))
        ]
        body = chance.randbytes(chance.choice([0, 50, 700]))
        record = AdmissionRecord.of(name, requests, body=body)
        if len(self.notes) == STREAMS_MAX:
            return
        base = self.writer.end
        try:
            self.writer.append(record)
        except Overloaded:
            assert self.writer.used_bytes > LIMITS.bytes_max // 2
            self.reached["refused admission"] += 1
            return
        self.notes[name] = StreamNote(record, [ChoiceNote(each) for each in record.choices()], base)
        self._note()

    def place(self, which: int, chance: Random) -> None:
        """A choice goes to an engine, or waits."""
        choice = self._choice(which)
        if choice is None:
            return
        peer = chance.choice([*PEERS, None])
        self.attempts += 1
        choice.attempt, choice.peer = self.attempts, peer
        engine = None if peer is None else EngineLife(peer.rank, peer.epoch)
        self._append(Placement(choice.request.request_id, self.attempts, engine))

    def credit(self, which: int, chance: Random) -> None:
        """A client takes more, or says an older number again."""
        choice = self._choice(which)
        if choice is not None:
            credit = chance.randrange(50)
            choice.credit = max(choice.credit, credit)
            self._append(ClientCredit(choice.request.request_id, credit))

    def end(self, which: int, chance: Random) -> None:
        """A choice ends in the frontend."""
        choice = self._choice(which)
        if choice is not None:
            reason = chance.choice([FinishReason.STOP, FinishReason.ABORT])
            choice.finish_here(reason)
            self._append(ChoiceEnd(request_id=choice.request.request_id, finish_reason=reason))

    def finish(self, which: int, chance: Random) -> None:
        """A stream ends, or is said to have ended once more."""
        name = self._name(which)
        if name:
            said = chance.randbytes(chance.choice([0, 30]))
            if self.notes[name].said is None:
                self.notes[name].end(said)
            self._append(StreamEnd(name, said))

    def delete(self, which: int, chance: Random) -> None:
        """Nothing of it is wanted."""
        name = self._name(which)
        if name:
            del self.notes[name]
            self._append(Deletion(name))

    # ---- what engines say

    def say(self, which: int, chance: Random) -> None:
        """A token for each request of an engine, among rows that do not count."""
        peer = PEERS[which % len(PEERS)]
        rows: list[tuple[int, int, int]] = []
        for choice in [each for each in self._live() if each.peer == peer]:
            rows += self._noise(choice, chance)
            self.count += 1
            rows.append((choice.attempt, len(choice.tokens), self.count))
            choice.tokens.append(self.count)
        self._send(peer, StepOutputs(1, [], *map(list, zip(*rows, strict=True))) if rows else None)

    def _noise(self, choice: ChoiceNote, chance: Random) -> list[tuple[int, int, int]]:
        here = len(choice.tokens)
        rows = [(choice.attempt, here + 1, 9), (10**6, here, 9)]
        if choice.attempt - 1 not in [each.attempt for each in self._live()]:
            rows.append((choice.attempt - 1, here, 9))
        if here:
            rows.append((choice.attempt, here - 1, 9))
        return chance.sample(rows, chance.choice([0, 0, 1, 2]))

    def speak(self, which: int, chance: Random) -> None:
        """Tokens of one request at once, with logprobs or an end, among what does not count."""
        placed = [choice for choice in self._live() if choice.peer is not None]
        if not placed:
            return
        choice = placed[which % len(placed)]
        assert choice.peer is not None
        here, peer = len(choice.tokens), choice.peer
        stale = choice.output(here, [9])
        noise = [
            attrs.evolve(stale, attempt=choice.attempt - 1),
            attrs.evolve(stale, first_index=here + 1),
            attrs.evolve(stale, request_id="unknown"),
        ]
        outputs = chance.sample(noise, chance.choice([0, 0, 1, 2]))
        self.count += 1
        output = choice.output(here, [self.count] * chance.choice([1, 3]))
        if not choice.tokens:
            output.cached_tokens = choice.cached = 4
        if chance.random() < 0.5:
            output.logprobs = LOGPROBS
            choice.logprobs += 1
        choice.tokens += output.token_ids
        if chance.random() < 0.3:
            output.finish_reason = choice.finish = FinishReason.LENGTH
            choice.peer = None
            outputs += [output, choice.output(len(choice.tokens), [9])]
        else:
            outputs.append(output)
        self._send(peer, StepOutputs(1, outputs))

    def drain(self, which: int, chance: Random) -> None:
        """An engine refuses a request, which waits from then on; nothing it says later counts."""
        placed = [choice for choice in self._live() if choice.peer is not None]
        if not placed:
            return
        choice = placed[which % len(placed)]
        peer, choice.peer = choice.peer, None
        assert peer is not None
        refusal = choice.output(len(choice.tokens), [])
        refusal.finish_reason, refusal.error_code = FinishReason.ERROR, EngineDraining.code
        late = choice.output(len(choice.tokens), [9])
        self._send(peer, StepOutputs(1, [refusal, late]))

    # ---- what happens to the memory

    def crash(self, which: int, chance: Random) -> None:
        """Killed at some store, of which the last may be torn; the next life goes on from there."""
        left = list(left_by(self.before, self.memory.stores, chance))
        data = left[which % len(left)]
        self.memory = NotedMemory(bytearray(data))
        contents = self.read(self.memory)
        self._judge_left(data, contents)
        self.reached["crash"] += 1
        truth = self.history[contents.term, contents.number]
        gone = [name for name in self.notes if name not in truth]
        self.notes = notes_of(contents.streams)
        self.reached["lost a stream"] += len(gone)
        self._resume(contents)

    def spoil(self, which: int, chance: Random) -> None:
        """Other bytes: what is read is true as of some record."""
        data = bytes(self.memory.data)
        spoiled = mutate(chance, data)
        if chance.random() < 0.5:  # deeper inside than a header that nothing survives
            spoiled = data[:HEADER_BYTES] + mutate(chance, data[HEADER_BYTES:])
        try:
            contents = self.read(NotedMemory(bytearray(spoiled)))
        except JournalUnreadable:
            assert spoiled[:HEADER_BYTES] != data[:HEADER_BYTES]
            self.reached["unreadable"] += 1
            return
        truth = self.history[contents.term, contents.number]
        found = self.found(contents)
        assert all(truth.get(name) == seen for name, seen in found.items())
        if spoiled[:HEADER_BYTES] == data[:HEADER_BYTES]:
            # What is lacking has its beginning in what was not read.
            lacking = [self.notes[name] for name in truth if name in self.notes.keys() - found]
            assert all(note.base >= contents.end for note in lacking)
        self.reached["spoiled, stopped" if contents.fault else "spoiled, whole"] += 1

    def expose(self, which: int, chance: Random) -> None:
        """The fill count is beyond the end: zeros there, or a late record, are not taken."""
        data, end, writer = bytearray(self.memory.data), self.writer.end, self.writer
        forged = bytes(which % 40)
        if self.notes and chance.random() < 0.5:
            # A lower term than the last record's, or a number left out.
            lower = self.ends[end][0] == writer.term and chance.random() < 0.5
            forged = seal(
                encode_own(Deletion(self._name(which))),
                RecordKind.OWN,
                end,
                writer.number + (1 if lower else 2),
                term=writer.term - lower,
            )
        data[end:] = forged
        data[FILL_AT : FILL_AT + 8] = len(data).to_bytes(8, "little")
        contents = self.read(NotedMemory(data))
        assert contents.end == end or not forged
        assert self.found(contents) == self.history[contents.term, contents.number]
        self.reached["exposed"] += 1

    def forge(self, which: int, chance: Random) -> None:
        """Good records that say anything at all: they are taken as far as they make sense."""
        data, end, number = bytearray(self.memory.data), self.writer.end, self.writer.number
        del data[end:]
        for _ in range(1 + which % 8):
            number += 1
            kind, payload = draw_payload(chance, which % 2 == 0)
            peer = chance.choice(PEERS)
            at = len(data)
            data += seal(payload, kind, at, number, term=self.writer.term, sender=peer)
        data[FILL_AT : FILL_AT + 8] = len(data).to_bytes(8, "little")
        contents = self.read(NotedMemory(data))
        assert not contents.fault, contents.fault
        assert contents.number == number
        self.reached["forged"] += 1

    def look(self) -> None:
        """All stores so far, each left as a kill leaves it, are read."""
        for data in left_by(self.before, self.memory.stores, Random(1)):
            self._judge_left(data, self.read(NotedMemory(bytearray(data))))

    # ---- reading

    def read(self, memory: NotedMemory) -> JournalContents:
        """By the reader that is tried."""
        header = JournalHeader.of(memory.load(0, HEADER_BYTES))
        reader = self.parts.reader(memory, header.begin, header.fill, piece_bytes=300)
        streams = self.parts.streams()
        contents = read_into(header, reader, streams)
        streams.check_invariants()
        return contents

    def _judge_left(self, data: bytes, contents: JournalContents) -> None:
        """Exactly the records that were published, and all of them."""
        fill = int.from_bytes(data[FILL_AT : FILL_AT + 8], "little")
        assert not contents.fault, contents.fault
        assert contents.end == fill
        if contents.number:
            assert (contents.term, contents.number) == self.ends[fill]
        assert self.found(contents) == self.history[contents.term, contents.number]

    def found(self, contents: JournalContents) -> Truth:
        """What was read, as it is compared."""
        return {name: seen_of(stream) for name, stream in contents.streams.streams.items()}

    # ---- notes

    def _resume(self, contents: JournalContents) -> None:
        self.before, self.memory.stores = bytes(self.memory.data), []
        self.writer = self.parts.writer.resume(self.memory, contents, contents.term + 1, LIMITS)
        key = (contents.term, contents.number)
        self.ends[contents.end] = key

    def _append(self, record: OwnRecord) -> None:
        self.writer.append(record)
        self._note()

    def _send(self, peer: Peer, message: StepOutputs | None) -> None:
        if message is not None:
            self.writer.append_message(peer, bytes(MESSAGES.encode(message)[0]))
            self._note()

    def _note(self) -> None:
        """What is true as of the record that was just written; then its owner cleans."""
        self._note_only()
        for name in self.writer.due():
            self.notes[name].base = self.writer.end
            self.writer.append(self.notes[name].snapshot())
            self.reached["snapshot"] += 1
            self._note_only()
        self.reached["freed"] = self.writer.begin // SEGMENT_BYTES

    def _note_only(self) -> None:
        key = (self.writer.term, self.writer.number)
        self.history[key] = {name: note.seen() for name, note in self.notes.items()}
        self.ends[self.writer.end] = key

    def _live(self) -> list[ChoiceNote]:
        streams = [note for note in self.notes.values() if note.said is None]
        choices = [choice for note in streams for choice in note.choices]
        return [choice for choice in choices if choice.finish is None and choice.end is None]

    def _choice(self, which: int) -> ChoiceNote | None:
        live = self._live()
        return live[which % len(live)] if live else None

    def _name(self, which: int) -> str:
        names = list(self.notes)
        return names[which % len(names)] if names else ""


ACTS: dict[str, Callable[[JournalWorld, int, Random], None]] = {
    act.__name__: act
    for act in (
        *(JournalWorld.admit, JournalWorld.place, JournalWorld.credit, JournalWorld.end),
        *(JournalWorld.finish, JournalWorld.delete, JournalWorld.say, JournalWorld.speak),
        *(JournalWorld.drain, JournalWorld.crash, JournalWorld.spoil, JournalWorld.expose),
        JournalWorld.forge,
    )
}
