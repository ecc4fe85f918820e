"""Fuzzes readers of journals with spoiled files: torn, cut, flipped, foreign and hostile ones.

Invariant: nothing but `JournalUnreadable` is raised, and only where the head of a file was changed;
what is found is true as of some record, with no token beyond the last good one; the next life goes
on behind that, and the one after it finds the same.

Each event is one spoiled file. There are `FILES` good ones, written by the acts of the fuzzer
`journal` and made once, so that a case costs little more than to read one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Final

import attrs

from ...runtime.journal.disk import (
    DISK_HEADER_BYTES,
    SECTOR_BYTES,
    Checkpoint,
    DiskJournal,
    fresh_disk_journal,
    read_disk_header,
)
from ...runtime.journal.envelope import RecordHead, RecordKind, seal
from ...runtime.journal.journal import LACKING, Journal
from ...runtime.journal.reader import JournalContents, RecordWalk, read_into
from ...runtime.journal.records import (
    HEADER_BYTES,
    JournalHeader,
    JournalUnreadable,
    NamedValue,
    encode_own,
)
from ...runtime.journal.streams import JournalStreams
from ...runtime.journal.writer import JournalMemory, JournalWriter
from ..doubles.journal_acts import PEERS, Act, apply
from ..doubles.journal_disk import PLAIN_BYTES_MAX, PlainDisk
from ..doubles.journal_memory import NotedMemory
from ..doubles.journal_notes import Truth, draw_payload, truth_of
from ..doubles.journal_world import LIMITS, JournalWorld, Parts
from ..drawing import TELLING_SIZES, mutate
from ..fuzzer import Fuzzer

FILES: Final = 48
_FILE_ACTS: Final = 40
_WRITTEN: Final = (
    *("admit", "admit", "place", "place", "say", "say", "say", "say", "speak", "speak", "credit"),
    *("keep", "end", "finish", "delete", "rebuild", "crash", "drain", "late"),
)
_BOOTS: Final = (b"1" * 16, b"2" * 16)
_VERSION_AT: Final = 8  # behind the magic
_WORDS_AT: Final = (64, 128, 192)  # begin, fill, rebuilding, of a journal in memory
# The most terms that there may be, and a number of records that none has.
_TERM_MAX: Final = 2**31


@attrs.frozen
class Case:
    """Good file, on disk or in memory, spoiled in one of the `WAYS`."""

    file: int
    is_on_disk: bool
    way: str
    seed: int


@attrs.frozen
class FileParts:
    """Machines under test, or ones with a planted fault."""

    read_header: Callable[[PlainDisk], tuple[JournalHeader, Checkpoint]] = read_disk_header
    reader: type[RecordWalk] = RecordWalk
    disk: type[DiskJournal] = DiskJournal


@attrs.frozen(eq=False)
class _GoodFile:
    """A journal, as it is on disk and in memory, and what is true after each of its records."""

    on_disk: bytes
    in_memory: bytes
    history: dict[tuple[int, int], Truth]
    end: int


@lru_cache(maxsize=FILES)
def _good_file(number: int) -> _GoodFile:
    chance = Random(f"good file {number}")
    world = JournalWorld(Parts(), memory=NotedMemory.fresh(DISK_HEADER_BYTES))
    for _ in range(_FILE_ACTS):
        what = chance.choice(_WRITTEN)
        apply(world, Act(what, chance.randrange(2**16), chance.randrange(2**32)))
    data = bytes(world.memory.data)
    head = bytearray(fresh_disk_journal(0, _BOOTS[0], DISK_HEADER_BYTES))
    checkpoint = Checkpoint(2, world.writer.begin, _BOOTS[0])
    encoded = checkpoint.encode()
    head[checkpoint.position : checkpoint.position + len(encoded)] = encoded
    return _GoodFile(
        bytes(head) + data[DISK_HEADER_BYTES:], data, dict(world.history), world.writer.end
    )


def draw(chance: Random, count: int) -> list[Case]:
    """Draw ways and files, all equally likely; most are on disk."""
    return [
        Case(
            chance.randrange(FILES),
            chance.random() < 0.7,
            chance.choice(tuple(WAYS)),
            chance.randrange(2**32),
        )
        for _ in range(count)
    ]


# ---- ways to spoil a file


def torn(chance: Random, data: bytes) -> bytes:
    """Tear sectors from some on: each was written, or was not, or lies elsewhere."""
    sectors = [data[at : at + SECTOR_BYTES] for at in range(0, len(data), SECTOR_BYTES)]
    first = chance.randrange(len(sectors) + 1)
    for place in range(max(first, 1), len(sectors)):
        if chance.random() < 0.4:
            other = chance.choice([bytes(SECTOR_BYTES), chance.choice(sectors)])
            sectors[place] = other[: len(sectors[place])]
    return b"".join(sectors)


def cut(chance: Random, data: bytes) -> bytes:
    """The end is not there; or zeros or anything at all are behind it."""
    kept = data[: chance.randrange(len(data) + 1)]
    if chance.random() < 0.3:
        return data + chance.choice([bytes(700), chance.randbytes(90), data[-600:]])
    return kept.ljust(len(data), b"\0") if chance.random() < 0.3 else kept


def flipped(chance: Random, data: bytes) -> bytes:
    """Flip a bit of a record."""
    if len(data) <= DISK_HEADER_BYTES:
        return data
    spoiled, at = bytearray(data), chance.randrange(DISK_HEADER_BYTES, len(data))
    spoiled[at] ^= 1 << chance.randrange(8)
    return bytes(spoiled)


def mutated(chance: Random, data: bytes) -> bytes:
    """Bytes, lengths and pieces that are others, anywhere."""
    return mutate(chance, data)


def foreign(chance: Random, data: bytes) -> bytes:
    """The head of another version, home or kind of file, all of it as it should be else."""
    version = chance.choice([0, 2, 3, 2**31, 2**32 - 1])
    home, segment = chance.choice([0, 1, 2**32 - 1]), chance.choice(TELLING_SIZES) % 2**32
    head = JournalHeader(home=home, segment_bytes=segment).fresh()[:_VERSION_AT]
    if chance.random() < 0.3:
        return chance.choice([b"\x7fELF", b"SQLite format 3\0", b"", b"{}"]) + data[16:]
    return head + version.to_bytes(4, "little") + data[_VERSION_AT + 4 :]


def hostile(chance: Random, data: bytes) -> bytes:
    """Heads and checkpoints with right checksums and wrong places."""
    spoiled = bytearray(data)
    place = chance.choice([*TELLING_SIZES, chance.randrange(2 * len(data)), len(data)]) % 2**64
    match chance.randrange(3):
        case 0:
            number = chance.choice([0, 1, 3, 2**63, 2**64 - 1])
            checkpoint = Checkpoint(number, place, chance.choice(_BOOTS))
            encoded = checkpoint.encode()
            spoiled[checkpoint.position : checkpoint.position + len(encoded)] = encoded
        case 1:
            segment = JournalHeader(home=0, segment_bytes=place % 2**32).fresh()[:24]
            spoiled[: len(segment)] = segment
        case _:
            at = chance.choice(_WORDS_AT)
            spoiled[at : at + 8] = place.to_bytes(8, "little")
    return bytes(spoiled)


# A way's name is part of what is drawn. `forged` files are judged apart: what they say is good.
WAYS: Final[dict[str, Callable[[Random, bytes], bytes]]] = {
    way.__name__: way for way in (torn, cut, flipped, mutated, foreign, hostile)
}


def forged(chance: Random, good: _GoodFile, number: int, term: int) -> bytes:
    """Good records that say anything at all, behind those of a file on disk."""
    data = bytearray(good.on_disk[: good.end])
    numbers = [number + 1, number + chance.choice([1, 2, 2, 2, 9])]
    terms = [term, chance.choice([term, term + 1, _TERM_MAX, 2**64 - 1])]
    for each, later in zip(numbers, terms, strict=True):
        kind, payload = draw_payload(chance, chance.random() < 0.5)
        if chance.random() < 0.1:  # the one value that a journal reads itself
            value = NamedValue(LACKING, chance.randbytes(9))
            kind, payload = RecordKind.OWN, encode_own(value)
        data += seal(payload, kind, len(data), each, term=later, sender=chance.choice(PEERS))
    return bytes(data)


# ---- what must hold


def check(cases: Sequence[Case], parts: FileParts) -> Counter[str]:
    """Each file alone."""
    reached: Counter[str] = Counter()
    for case in cases:
        good, chance = _good_file(case.file), Random(case.seed)
        whole = good.on_disk if case.is_on_disk else good.in_memory
        data = WAYS[case.way](chance, whole)
        reached[f"{case.way}: {_judge(case, good, data, parts)}"] += 1
        if case.is_on_disk and case.seed % 16 == 0:
            reached[_judge_forged(chance, good, parts)] += 1
    return reached


def _judge(case: Case, good: _GoodFile, data: bytes, parts: FileParts) -> str:
    whole = good.on_disk if case.is_on_disk else good.in_memory
    head_bytes = DISK_HEADER_BYTES if case.is_on_disk else HEADER_BYTES
    try:
        memory, contents = _read(case, data, parts)
    except JournalUnreadable:
        assert data[:head_bytes] != whole[:head_bytes], "the head of the file is as it was"
        return "unreadable"
    found = truth_of(contents.streams)
    truth = good.history.get((contents.term, contents.number), {})
    assert all(truth.get(name) == seen for name, seen in found.items()), "nothing that is not true"
    if data[:head_bytes] == whole[:head_bytes] and not contents.fault:
        assert contents.end <= good.end, "nothing behind the last record"
    if contents.end > PLAIN_BYTES_MAX:
        return "too large"
    _go_on(memory, contents, lambda: _read(case, None, parts, memory)[1])
    return "stopped" if contents.fault else "whole"


def _judge_forged(chance: Random, good: _GoodFile, parts: FileParts) -> str:
    number, term = max(good.history, key=lambda key: key[1])[::-1]
    disk = PlainDisk(bytearray(forged(chance, good, number, term)))
    header, checkpoint = parts.read_header(disk)
    contents = _walk(disk, header, parts)
    journal = parts.disk(disk, _BOOTS[0], header, checkpoint)
    if not contents.is_before(_TERM_MAX):
        return "forged: of a later life"
    _go_on(journal, contents, lambda: _walk(disk, read_disk_header(disk)[0], parts))
    return "forged: taken"


def _read(
    case: Case, data: bytes | None, parts: FileParts, memory: JournalMemory | None = None
) -> tuple[JournalMemory, JournalContents]:
    """A file's contents; without data, once more of the same one."""
    if case.is_on_disk:
        disk = memory.file if isinstance(memory, DiskJournal) else PlainDisk(bytearray(data or b""))
        assert isinstance(disk, PlainDisk)
        header, checkpoint = parts.read_header(disk)
        return parts.disk(disk, _BOOTS[0], header, checkpoint), _walk(disk, header, parts)
    noted = memory if isinstance(memory, NotedMemory) else NotedMemory(bytearray(data or b""))
    header = JournalHeader.of(noted.load(0, HEADER_BYTES))
    return noted, _walk(noted, header, parts)


def _walk(
    source: PlainDisk | NotedMemory, header: JournalHeader, parts: FileParts
) -> JournalContents:
    reader = parts.reader(source, header.begin, header.fill)
    return read_into(header, reader, JournalStreams())


def _go_on(
    memory: JournalMemory, contents: JournalContents, read: Callable[[], JournalContents]
) -> None:
    """The next life appends a record; the one after it finds that, and what was found before."""
    writer = JournalWriter.resume(memory, contents, contents.term + 1, LIMITS)
    journal = Journal.resume(writer, contents)
    contents.streams.check_invariants()
    journal.handle_adopted()
    found = truth_of(contents.streams)
    writer.append(NamedValue("next", b""))
    again = read()
    assert not again.fault, again.fault
    found, left = found | {"next": (b"",)}, truth_of(again.streams)
    for truth in (found, left):  # that names what may lack something is the journal's own
        truth.pop(LACKING, None)
    assert left == found, "the next life finds the same"


# ---- planted


class _Trusting(RecordWalk):
    """Planted: checksums are not looked at."""

    def _is_good(self, head: RecordHead, record: memoryview) -> bool:
        return True


class _Keeping(DiskJournal):
    """Planted: what is behind the last good record stays in the file."""

    def publish(self, position: int, value: int) -> None:
        """Nothing is cut off."""
        if value < self._end:
            self._end = value
        else:
            super().publish(position, value)


def _any_version(file: PlainDisk) -> tuple[JournalHeader, Checkpoint]:
    """Planted: what cannot be read is no reason to stop."""
    try:
        return read_disk_header(file)
    except JournalUnreadable:
        begin = DISK_HEADER_BYTES
        header = JournalHeader(home=0, segment_bytes=begin, begin=begin, fill=file.size())
        return header, Checkpoint(1, begin, _BOOTS[0])


FUZZER = Fuzzer[Case, FileParts](
    name="journal-files",
    invariant="a spoiled journal is read up to a good record, or refused; the next life goes on",
    draw=draw,
    check=check,
    target=FileParts(),
    faults={
        "checksums are not looked at": FileParts(reader=_Trusting),
        "what is behind the last good record stays": FileParts(disk=_Keeping),
        "any head will do": FileParts(read_header=_any_version),
    },
    round_events=500,
    smoke_rounds=4,
    reaches=frozenset(
        {
            *(f"{way}: stopped" for way in ("torn", "cut", "flipped", "mutated", "hostile")),
            *(f"{way}: whole" for way in ("torn", "cut", "mutated", "hostile")),
            *(f"{way}: unreadable" for way in ("cut", "mutated", "foreign", "hostile")),
            *("forged: taken", "forged: of a later life"),
        }
    ),
)
