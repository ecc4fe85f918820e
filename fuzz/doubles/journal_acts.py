"""Acts of the journal's fuzzer: what frontends write, what engines say, what happens to the memory.

An act that has no object does nothing. Engines also say what the ledger refuses, in the same
messages; that never counts.
"""

from collections.abc import Callable
from random import Random

import attrs

from ...engine.errors import EngineDraining
from ...engine.messages import AddRequest, FinishReason, StepOutputs
from ...engine.sampling_params import SamplingParams
from ...runtime.errors import Overloaded
from ...runtime.journal.envelope import RecordKind, seal
from ...runtime.journal.records import (
    FILL_AT,
    HEADER_BYTES,
    REBUILDING_AT,
    AdmissionRecord,
    ChoiceEnd,
    ClientCredit,
    Deletion,
    EngineLife,
    JournalUnreadable,
    NamedValue,
    Placement,
    encode_own,
)
from ...transports.links.channel import Peer
from ..drawing import mutate
from .journal_memory import NotedMemory, left_by
from .journal_notes import (
    LOGPROBS,
    ChoiceNote,
    StreamNote,
    ValueNote,
    draw_payload,
    notes_of,
)
from .journal_world import LIMITS, JournalWorld

STREAMS_MAX = 4
PEERS = (Peer("engine", 0, 1), Peer("engine", 1, 1), Peer("engine", 1, 2))


@attrs.frozen
class Act:
    """Act on whichever stream or engine `which` comes out at."""

    what: str
    which: int
    seed: int


# ---- what a frontend writes


def admit(world: JournalWorld, which: int, chance: Random) -> None:
    """A new stream, unless there is no room."""
    world.count += 1
    name = f"s{world.count}"
    sampling = SamplingParams(max_tokens=20, seed=1)
    requests = [
        AddRequest(
            request_id=f"{name}#{number}",
            attempt=world.attempts + 1 + number,
            prompt_token_ids=[1] * (1 + which % 9),
            sampling=sampling,
        )
        for number in range(chance.choice([1, 1, 2]))
    ]
    peer = chance.choice([PEERS[which % len(PEERS)], None])
    record = AdmissionRecord.of(
        name,
        requests,
        body=chance.randbytes(chance.choice([0, 50, 700])),
        engine=None if peer is None else EngineLife(peer.rank, peer.epoch),
        numerics_id=chance.choice("nm"),
        client_credit=chance.choice([0, 7]),
    )
    if sum(isinstance(note, StreamNote) for note in world.notes.values()) == STREAMS_MAX:
        return
    base = world.writer.end
    try:
        world.writer.append(record)
    except Overloaded:
        assert world.writer.used_bytes > LIMITS.bytes_max // 2
        world.reached["refused admission"] += 1
        world.turn_at -= LIMITS.turn_bytes
        world.clean()
        return
    choices = [ChoiceNote(each, credit=record.client_credit) for each in record.choices()]
    for choice in choices if peer is not None else ():
        choice.place(choice.request.attempt, peer, record.numerics_id)
    world.attempts += len(choices)
    world.notes[name] = StreamNote(record, choices, base, world.writer.end - base)
    world.note()


def keep(world: JournalWorld, which: int, chance: Random) -> None:
    """A value, perhaps in the place of another."""
    record = NamedValue(f"v{which % 3}", chance.randbytes(chance.choice([0, 30, 300])))
    base = world.writer.end
    world.writer.append(record)
    world.notes[record.name] = ValueNote(record, base, world.writer.end - base)
    world.reached["value"] += 1
    world.note()


def place(world: JournalWorld, which: int, chance: Random) -> None:
    """A choice goes to an engine, or waits."""
    choice = world.choice(which)
    if choice is None:
        return
    peer = chance.choice([*PEERS, None])
    world.attempts += 1
    numerics = chance.choice("nm")
    choice.place(world.attempts, peer, numerics)
    engine = None if peer is None else EngineLife(peer.rank, peer.epoch)
    world.append(Placement(choice.request.request_id, world.attempts, engine, numerics))
    world.reached["inexact"] += choice.inexact == len(choice.tokens) > 0


def credit(world: JournalWorld, which: int, chance: Random) -> None:
    """A client takes more, or says an older number again."""
    choice = world.choice(which)
    if choice is not None:
        credit = chance.randrange(50)
        choice.credit = max(choice.credit, credit)
        world.append(ClientCredit(choice.request.request_id, credit))


def end(world: JournalWorld, which: int, chance: Random) -> None:
    """A choice ends in the frontend."""
    choice = world.choice(which)
    if choice is not None:
        reason = chance.choice([FinishReason.STOP, FinishReason.ABORT])
        choice.finish_here(reason)
        world.append(ChoiceEnd(request_id=choice.request.request_id, finish_reason=reason))


def finish(world: JournalWorld, which: int, chance: Random) -> None:
    """A stream ends, which is a record of all of it."""
    name = world.name(which)
    note = world.notes.get(name)
    if isinstance(note, StreamNote) and note.said is None:
        note.end(chance.randbytes(chance.choice([0, 30])))
        note.base = world.writer.end
        world.writer.append(note.snapshot())
        note.base_bytes = world.writer.end - note.base
        world.note()


def delete(world: JournalWorld, which: int, chance: Random) -> None:
    """Nothing of it is wanted."""
    name = world.name(which)
    if name:
        del world.notes[name]
        world.append(Deletion([name]))


def rebuild(world: JournalWorld, which: int, chance: Random) -> None:
    """A stream is rebuilt from now on, or none is."""
    name = world.name(which) if chance.random() < 0.7 else ""
    world.writer.note_rebuilding(name or None)
    word = world.memory.load(REBUILDING_AT, 8)
    world.rebuilding[int.from_bytes(word, "little")] = (world.term, name)


# ---- what engines say


def say(world: JournalWorld, which: int, chance: Random) -> None:
    """A token for each request of an engine, among rows that do not count."""
    peer = PEERS[which % len(PEERS)]
    rows: list[tuple[int, int, int]] = []
    for choice in [each for each in world.live() if each.peer == peer]:
        rows += _noise(world, choice, chance)
        world.count += 1
        rows.append((choice.attempt, len(choice.tokens), world.count))
        choice.tokens.append(world.count)
    world.send(peer, StepOutputs(1, [], *map(list, zip(*rows, strict=True))) if rows else None)


def _noise(world: JournalWorld, choice: ChoiceNote, chance: Random) -> list[tuple[int, int, int]]:
    here = len(choice.tokens)
    rows = [(choice.attempt, here + 1, 9), (10**6, here, 9)]
    if choice.attempt - 1 not in [each.attempt for each in world.live()]:
        rows.append((choice.attempt - 1, here, 9))
    if here:
        rows.append((choice.attempt, here - 1, 9))
    return chance.sample(rows, chance.choice([0, 0, 1, 2]))


def speak(world: JournalWorld, which: int, chance: Random) -> None:
    """Tokens of one request at once, with logprobs or an end, among what does not count."""
    placed = [choice for choice in world.live() if choice.peer is not None]
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
    world.count += 1
    output = choice.output(here, [world.count] * chance.choice([1, 3]))
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
    world.send(peer, StepOutputs(1, outputs))


def drain(world: JournalWorld, which: int, chance: Random) -> None:
    """An engine refuses a request, which waits from then on; nothing it says later counts."""
    placed = [choice for choice in world.live() if choice.peer is not None]
    if not placed:
        return
    choice = placed[which % len(placed)]
    peer, choice.peer = choice.peer, None
    assert peer is not None
    refusal = choice.output(len(choice.tokens), [])
    refusal.finish_reason, refusal.error_code = FinishReason.ERROR, EngineDraining.code
    late = choice.output(len(choice.tokens), [9])
    world.send(peer, StepOutputs(1, [refusal, late]))


def late(world: JournalWorld, which: int, chance: Random) -> None:
    """A choice that is over, or whose stream is, has one more record or token."""
    live = world.live()
    over = [each for note in world.notes.values() for each in note.choices if each not in live]
    if not over:
        return
    choice = over[which % len(over)]
    request_id, here = choice.request.request_id, len(choice.tokens)
    record = chance.choice(
        [
            None,
            Placement(request_id, 10**6, EngineLife(0, 1)),
            ClientCredit(request_id, 99),
            ChoiceEnd(request_id=request_id, finish_reason=FinishReason.LENGTH),
        ]
    )
    world.reached["late"] += 1
    if record is not None:
        world.append(record)
        return
    said = StepOutputs(1, [choice.output(here, [9])], [choice.attempt], [here], [9])
    world.send(chance.choice(PEERS), said)


# ---- what happens to the memory


def crash(world: JournalWorld, which: int, chance: Random) -> None:
    """Killed at some store, of which the last may be torn; the next life goes on from there."""
    left = list(left_by(world.before, world.memory.stores, chance))
    data = left[which % len(left)]
    world.memory = NotedMemory(bytearray(data))
    contents = world.read(world.memory)
    world.judge_left(data, contents)
    world.reached["crash"] += 1
    deaths = world.deaths[contents.term, contents.number]
    gone = [name for name in world.notes if name not in deaths]
    world.notes = notes_of(contents.streams, deaths)
    world.reached["lost a stream"] += len(gone)
    world.resume(contents)


def spoil(world: JournalWorld, which: int, chance: Random) -> None:
    """Other bytes: what is read is true as of some record."""
    data = bytes(world.memory.data)
    spoiled, way = mutate(chance, data), chance.randrange(4)
    if way == 0:  # deeper inside than a header that nothing survives
        spoiled = data[:HEADER_BYTES] + mutate(chance, data[HEADER_BYTES:])
    elif way > 1 and world.writer.begin < len(data):  # a record that may still say something
        place = chance.randrange(world.writer.begin, len(data))
        other = data[place] ^ 1 << chance.randrange(8)
        spoiled = b"".join((data[:place], bytes([other]), data[place + 1 :]))
    try:
        contents = world.read(NotedMemory(bytearray(spoiled)))
    except JournalUnreadable:
        assert spoiled[:HEADER_BYTES] != data[:HEADER_BYTES]
        world.reached["unreadable"] += 1
        return
    truth = world.history[contents.term, contents.number]
    found = world.found(contents)
    assert all(truth.get(name) == seen for name, seen in found.items())
    if spoiled[:HEADER_BYTES] == data[:HEADER_BYTES]:
        # Streams that are lacking have their beginning in what was not read.
        lacking = [world.notes[name] for name in truth if name in world.notes.keys() - found]
        assert all(note.base >= contents.end for note in lacking)
    world.reached["spoiled, stopped" if contents.fault else "spoiled, whole"] += 1


def expose(world: JournalWorld, which: int, chance: Random) -> None:
    """The fill count is beyond the end: zeros there, or a late record, are not taken."""
    data, end, writer = bytearray(world.memory.data), world.writer.end, world.writer
    forged = bytes(which % 40)
    if world.notes and chance.random() < 0.5:
        # A lower term than the last record's, or a number left out.
        lower = world.ends[end][0] == writer.term and chance.random() < 0.5
        forged = seal(
            encode_own(Deletion([world.name(which)])),
            RecordKind.OWN,
            end,
            writer.number + (1 if lower else 2),
            term=writer.term - lower,
        )
    data[end:] = forged
    data[FILL_AT : FILL_AT + 8] = len(data).to_bytes(8, "little")
    contents = world.read(NotedMemory(data))
    assert contents.end == end or not forged
    assert world.found(contents) == world.history[contents.term, contents.number]
    world.reached["exposed"] += 1


def forge(world: JournalWorld, which: int, chance: Random) -> None:
    """Good records that say anything at all: they are taken as far as they make sense."""
    data, end, number = bytearray(world.memory.data), world.writer.end, world.writer.number
    del data[end:]
    for _ in range(1 + which % 8):
        number += 1
        kind, payload = draw_payload(chance, which % 2 == 0)
        peer = chance.choice(PEERS)
        at = len(data)
        data += seal(payload, kind, at, number, term=world.writer.term, sender=peer)
    data[FILL_AT : FILL_AT + 8] = len(data).to_bytes(8, "little")
    contents = world.read(NotedMemory(data))
    assert not contents.fault, contents.fault
    assert contents.number == number
    world.reached["forged"] += 1


ACTS: dict[str, Callable[[JournalWorld, int, Random], None]] = {
    act.__name__: act
    for act in (
        *(admit, keep, place, credit, end, finish, delete, rebuild, say, speak),
        *(drain, late, crash, spoil, expose, forge),
    )
}


def apply(world: JournalWorld, act: Act) -> None:
    """Apply an act; the writer is as it should be afterwards."""
    ACTS[act.what](world, act.which, Random(act.seed))
    world.writer.check_invariants()
